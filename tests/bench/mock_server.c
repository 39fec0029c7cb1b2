/* A server of chat completion streams that keeps an exact schedule and logs the truth.
 *
 * One thread, epoll, a heap of due times. Each token is one HTTP chunk with one event, sent by one
 * send(2). Listens on a free port of 127.0.0.1 and prints it; on SIGTERM it writes its log:
 *   u32 request (the digits of x-request-id), u32 index, u64 ns (CLOCK_MONOTONIC)
 * one record for each token, ns read just before its send; index 0xffffffff: the last byte of the
 * request had arrived.
 *
 * usage: mock_server LOG ttft_ms=1000 tps=50 tokens=300 mode=spread|burst|together
 *   ttft_ms   from the request's last byte to the first token
 *   mode      spread: each stream has its own phase; burst: all streams emit in one step of
 *             1/tps, as an engine does; together: no phase at all, TTFT exact
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { SPREAD, BURST, TOGETHER };
enum { BODY_DONE = 0xffffffffu, MAX_EVENTS = 512 };

struct record { uint32_t request, index; uint64_t ns; };

struct conn {
    int fd, closed, heap_at;      /* heap_at: place in the heap, -1 when not streaming */
    char *in;
    size_t used, room, wanted;    /* wanted: bytes of head and body, 0 until the head is there */
    uint32_t request, sent;
    uint64_t due;
};

static double ttft_ms = 1000, tps = 50;
static unsigned tokens = 300;
static int mode = SPREAD;
static uint64_t step_ns;
static struct record *log_records;
static size_t log_used, log_room;
static struct conn **heap;
static int heap_used, heap_room;
static volatile sig_atomic_t stop;

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void note(uint32_t request, uint32_t index, uint64_t ns) {
    if (log_used == log_room) {
        log_room = log_room ? log_room * 2 : 1 << 20;
        log_records = realloc(log_records, log_room * sizeof *log_records);
    }
    log_records[log_used++] = (struct record){request, index, ns};
}

/* ---- heap ordered by due time ---- */

static void put_at(int at, struct conn *c) { heap[at] = c; c->heap_at = at; }

static void sift(int at) {
    struct conn *c = heap[at];
    while (at && heap[(at - 1) / 2]->due > c->due) { put_at(at, heap[(at - 1) / 2]); at = (at - 1) / 2; }
    for (;;) {
        int child = 2 * at + 1;
        if (child >= heap_used) break;
        if (child + 1 < heap_used && heap[child + 1]->due < heap[child]->due) child++;
        if (heap[child]->due >= c->due) break;
        put_at(at, heap[child]);
        at = child;
    }
    put_at(at, c);
}

static void heap_add(struct conn *c) {
    if (heap_used == heap_room) {
        heap_room = heap_room ? heap_room * 2 : 1024;
        heap = realloc(heap, heap_room * sizeof *heap);
    }
    put_at(heap_used++, c);
    sift(c->heap_at);
}

static void heap_drop(struct conn *c) {
    int at = c->heap_at;
    if (at < 0) return;
    c->heap_at = -1;
    struct conn *last = heap[--heap_used];
    if (last != c) { put_at(at, last); sift(at); }
}

/* ---- answers ---- */

static void drop(struct conn *c) {
    if (c->closed) return;
    c->closed = 1;
    heap_drop(c);
    close(c->fd);
    free(c->in);
    c->in = NULL;
}

static void push(struct conn *c, const char *data, size_t size) {
    if (!c->closed && send(c->fd, data, size, MSG_NOSIGNAL) != (ssize_t)size) drop(c);
}

static void event(struct conn *c, const char *choices, const char *usage, uint32_t index) {
    char json[800], out[900];
    int n = snprintf(json, sizeof json,
        "data: {\"id\":\"chatcmpl-%08x%08x\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,"
        "\"model\":\"mock\",\"choices\":[%s],\"system_fingerprint\":null%s}\n\n",
        c->request, c->request * 2654435761u, choices, usage);
    int m = snprintf(out, sizeof out, "%x\r\n%s\r\n", n, json);
    if (index != BODY_DONE) note(c->request, index, now_ns());
    push(c, out, m);
}

static void next_token(struct conn *c) {
    static const char *words[8] = {" the", " def", " self", "return", "(x)", " value", "\\n    ", " if"};
    char choice[300], usage[160];
    if (!c->sent)
        event(c, "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}", "", BODY_DONE);
    snprintf(choice, sizeof choice, "{\"index\":0,\"delta\":{\"content\":\"%s\"},\"logprobs\":null,\"finish_reason\":null,\"token_ids\":null}",
             words[(c->request + c->sent) & 7]);
    event(c, choice, "", c->sent++);
    if (c->sent < tokens) {
        c->due += step_ns;
        if (!c->closed) sift(c->heap_at);
        return;
    }
    heap_drop(c);
    event(c, "{\"index\":0,\"delta\":{\"content\":\"\"},\"logprobs\":null,\"finish_reason\":\"stop\",\"stop_reason\":null}", "", BODY_DONE);
    snprintf(usage, sizeof usage, ",\"usage\":{\"prompt_tokens\":100000,\"total_tokens\":%u,\"completion_tokens\":%u}", 100000 + c->sent, c->sent);
    event(c, "", usage, BODY_DONE);
    push(c, "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n", 24);
}

static void start_stream(struct conn *c) {
    static const char head[] = "HTTP/1.1 200 OK\r\nserver: mock\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
    uint64_t now = now_ns(), due = now + (uint64_t)(ttft_ms * 1e6);
    note(c->request, BODY_DONE, now);
    if (mode == BURST) due = (due + step_ns - 1) / step_ns * step_ns;
    if (mode == SPREAD) due += (uint64_t)((c->request * 0.6180339887 - (uint64_t)(c->request * 0.6180339887)) * step_ns);
    c->due = due;
    c->sent = 0;
    push(c, head, sizeof head - 1);
    if (!c->closed) heap_add(c);
}

static void models(struct conn *c) {
    static const char body[] = "{\"object\":\"list\",\"data\":[{\"id\":\"mock\",\"object\":\"model\",\"created\":1,\"owned_by\":\"mock\",\"max_model_len\":131072}]}";
    char out[400];
    push(c, out, snprintf(out, sizeof out, "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n\r\n%s", sizeof body - 1, body));
}

/* ---- requests ---- */

static void take_head(struct conn *c) {
    size_t seen = c->used < 65536 ? c->used : 65536;
    char *end = memmem(c->in, seen, "\r\n\r\n", 4);
    if (!end) return;
    *end = 0;
    char *length = strcasestr(c->in, "\r\ncontent-length:"), *id = strcasestr(c->in, "\r\nx-request-id:");
    c->wanted = end + 4 - c->in + (length ? strtoull(length + 17, NULL, 10) : 0);
    c->request = 0;
    if (id) for (id += 15; *id && *id != '\r'; id++) if (*id >= '0' && *id <= '9') c->request = c->request * 10 + (*id - '0');
}

static void readable(struct conn *c) {
    for (;;) {
        if (c->room - c->used < 65536) c->in = realloc(c->in, c->room = c->room ? c->room * 2 : 1 << 17);
        ssize_t n = recv(c->fd, c->in + c->used, c->room - c->used - 1, 0);
        if (n < 0 && errno == EAGAIN) return;
        if (n <= 0) { drop(c); return; }
        c->used += n;
        c->in[c->used] = 0;
        if (!c->wanted) take_head(c);
        if (!c->wanted || c->used < c->wanted) continue;
        int posts = !strncmp(c->in, "POST", 4);
        c->used = c->wanted = 0;
        if (posts) start_stream(c); else models(c);
        if (c->closed) return;
    }
}

static void accept_all(int listener, int ep) {
    int fd, one = 1;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        struct conn *c = calloc(1, sizeof *c);
        c->fd = fd;
        c->heap_at = -1;
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e);
    }
}

static int listen_and_tell(void) {
    /* Loopback segments are 64 KB: with a small buffer a 450 KB body can wait for a window update. */
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), buffer = 4 << 20;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    if (bind(fd, (void *)&at, size) || listen(fd, 4096) || getsockname(fd, (void *)&at, &size)) return -1;
    printf("%d\n", ntohs(at.sin_port));
    fflush(stdout);
    return fd;
}

static void on_signal(int number) { (void)number; stop = 1; }

static int options(int count, char **words) {
    for (int i = 2; i < count; i++) {
        char *w = words[i];
        if (sscanf(w, "ttft_ms=%lf", &ttft_ms) == 1 || sscanf(w, "tps=%lf", &tps) == 1 || sscanf(w, "tokens=%u", &tokens) == 1) continue;
        if (!strcmp(w, "mode=spread")) mode = SPREAD;
        else if (!strcmp(w, "mode=burst")) mode = BURST;
        else if (!strcmp(w, "mode=together")) mode = TOGETHER;
        else { fprintf(stderr, "unknown option %s\n", w); return 2; }
    }
    step_ns = (uint64_t)(1e9 / tps);
    return count < 2 ? 2 : 0;
}

int main(int count, char **words) {
    if (options(count, words)) return 2;
    struct sigaction quit = {.sa_handler = on_signal};
    sigaction(SIGTERM, &quit, NULL);
    prctl(PR_SET_TIMERSLACK, 1000);
    int listener = listen_and_tell(), ep = epoll_create1(0);
    if (listener < 0) { perror("listen"); return 1; }
    struct epoll_event add = {.events = EPOLLIN}, got[MAX_EVENTS];
    epoll_ctl(ep, EPOLL_CTL_ADD, listener, &add);
    while (!stop) {
        struct timespec wait = {0, 200000000};
        if (heap_used) {
            int64_t left = (int64_t)(heap[0]->due - now_ns());
            if (left < wait.tv_nsec) wait.tv_nsec = left < 0 ? 0 : left;
        }
        int n = epoll_pwait2(ep, got, MAX_EVENTS, &wait, NULL);
        for (int k = 0; heap_used && k < 4096 && heap[0]->due <= now_ns(); k++) next_token(heap[0]);
        for (int i = 0; i < n; i++) {
            struct conn *c = got[i].data.ptr;
            if (!c) accept_all(listener, ep);
            else if (!c->closed) readable(c);
        }
    }
    FILE *out = fopen(words[1], "wb");
    if (!out || fwrite(log_records, sizeof *log_records, log_used, out) != log_used || fclose(out)) { perror("log"); return 1; }
    return 0;
}

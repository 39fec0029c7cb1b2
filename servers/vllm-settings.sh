# shellcheck shell=bash
# What start-vllm-base.sh and start-vllm-optimised.sh have in common. Sourced by them, not run.
#
# Every setting is an environment variable; a wrong value is refused before vLLM is started, all
# faults at once. Both switches are always written out, so that no default of a vLLM version decides.

faults=()

whole_number() { # NAME LEAST [MOST]
    local most=${3:-999999999}
    [[ ${!1} =~ ^[0-9]{1,9}$ ]] && ((10#${!1} >= $2 && 10#${!1} <= most)) && return
    faults+=("$1 is '${!1}': must be a whole number from $2 to $most")
}

share() { # NAME
    [[ ${!1} =~ ^(0\.[0-9]*[1-9][0-9]*|1(\.0*)?)$ ]] && return
    faults+=("$1 is '${!1}': must be a number above 0, at most 1")
}

on_or_off() { # NAME
    [[ ${!1} == on || ${!1} == off ]] && return
    faults+=("$1 is '${!1}': must be on or off")
}

not_empty() { # NAME
    [[ -n ${!1} && ${!1} != -* ]] && return
    faults+=("$1 is '${!1}': must be a name")
}

# The flag of a switch: on is --enable-NAME, off is --no-enable-NAME.
switch() { # NAME on|off
    if [[ $2 == on ]]; then printf -- '--enable-%s' "$1"; else printf -- '--no-enable-%s' "$1"; fi
}

refuse_keys() { # the words of the command line
    local word
    for word in "$@"; do
        [[ $word == --api-key* || $word == --hf-token* ]] || continue
        faults+=("${word%%=*}: a key on a command line can be read by every process; set VLLM_API_KEY")
    done
}

start_vllm() { # further flags for vllm serve
    : "${VLLM:=vllm}" "${MODEL:=Qwen/Qwen2.5-7B-Instruct}" "${SERVED_MODEL_NAME:=qwen2.5-7b}"
    : "${HOST:=127.0.0.1}" "${PORT:=8000}" "${MAX_MODEL_LEN:=131072}" "${MAX_NUM_SEQS:=64}"
    : "${GPU_MEMORY_UTILIZATION:=0.9}" "${TENSOR_PARALLEL_SIZE:=1}"
    : "${LONG_PREFILL_TOKEN_THRESHOLD:=0}"
    # Without chunked prefill a whole prompt has to fit into one step.
    if [[ $CHUNKED_PREFILL == off ]]; then : "${MAX_NUM_BATCHED_TOKENS:=$MAX_MODEL_LEN}"; fi
    : "${MAX_NUM_BATCHED_TOKENS:=8192}"

    not_empty MODEL
    not_empty SERVED_MODEL_NAME
    not_empty HOST
    on_or_off CHUNKED_PREFILL
    on_or_off PREFIX_CACHING
    whole_number PORT 1 65535
    whole_number MAX_MODEL_LEN 1
    whole_number MAX_NUM_SEQS 1
    whole_number MAX_NUM_BATCHED_TOKENS 1
    whole_number TENSOR_PARALLEL_SIZE 1
    whole_number LONG_PREFILL_TOKEN_THRESHOLD 0
    share GPU_MEMORY_UTILIZATION
    refuse_keys "$@"
    if ((${#faults[@]} == 0)) && [[ $CHUNKED_PREFILL == off ]] &&
        ((10#$MAX_NUM_BATCHED_TOKENS < 10#$MAX_MODEL_LEN)); then
        faults+=("MAX_NUM_BATCHED_TOKENS is $MAX_NUM_BATCHED_TOKENS, below MAX_MODEL_LEN $MAX_MODEL_LEN, and CHUNKED_PREFILL is off: vLLM would not start")
    fi
    if ((${#faults[@]} == 0)) && ! command -v "$VLLM" >/dev/null; then
        faults+=("VLLM is '$VLLM': no such command; install vLLM, or set VLLM to its path")
    fi
    if ((${#faults[@]})); then
        printf '%s: %d fault(s):\n' "${0##*/}" "${#faults[@]}" >&2
        printf '  %s\n' "${faults[@]}" >&2
        exit 2
    fi

    local command=(
        "$VLLM" serve "$MODEL"
        --served-model-name "$SERVED_MODEL_NAME"
        --host "$HOST"
        --port "$PORT"
        --max-model-len "$MAX_MODEL_LEN"
        --max-num-seqs "$MAX_NUM_SEQS"
        --max-num-batched-tokens "$MAX_NUM_BATCHED_TOKENS"
        --long-prefill-token-threshold "$LONG_PREFILL_TOKEN_THRESHOLD"
        --gpu-memory-utilization "$GPU_MEMORY_UTILIZATION"
        --tensor-parallel-size "$TENSOR_PARALLEL_SIZE"
        "$(switch chunked-prefill "$CHUNKED_PREFILL")"
        "$(switch prefix-caching "$PREFIX_CACHING")"
        --enable-prompt-tokens-details # cached tokens of each turn
        --enable-per-request-metrics   # queue and prefill of each turn
        "$@"
    )
    printf 'starting:'
    printf ' %q' "${command[@]}"
    printf '\n'
    exec "${command[@]}"
}

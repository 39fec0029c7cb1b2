"""Names of the messages between workers and master, beside Locust's own."""

PING = "agentload_ping"  # worker: {sent_ns}
PONG = "agentload_pong"  # master: {sent_ns, master_ns}
ROWS = "agentload_rows"  # worker: a batch of `relay.ShardSender`, with a message of `LiveSender`
ACK = "agentload_ack"  # master: the answer of `relay.ShardReceiver`, with the number of the latter
MEASURED = "agentload_measured"  # master: {run_id, to_s}: turns that start later do not count
STAGES = "agentload_stages"  # master: {run_id, from_s}: the warm-up is over

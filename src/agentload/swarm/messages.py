"""Names of the messages between workers and master, beside Locust's own."""

PING = "agentload_ping"  # worker: {sent_ns}
PONG = "agentload_pong"  # master: {sent_ns, master_ns}
ROWS = "agentload_rows"  # worker: a batch of `relay.ShardSender`
ACK = "agentload_ack"  # master: the answer of `relay.ShardReceiver`
STAGES = "agentload_stages"  # master: {run_id, from_s}: the warm-up is over

"""The shard of this worker in the run that goes on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from agentload.recording.recorder import RowCounts
from agentload.recording.shard import (
    SHARDS_FOLDER,
    Shard,
    ShardError,
    scenario_sha256,
    sealed,
    shard_folder_name,
    write_shard,
)
from agentload.swarm import tally
from agentload.swarm.numbering import rank_of
from agentload.swarm.spec import RunSpec


class OwnShard:
    """Where the rows of this worker lie: in the spool until delivered, or in a run folder to stay.

    Either way `shard.json` says whose they are, so that they can be merged whatever happens.
    """

    def __init__(self, spec: RunSpec, client_id: str, run_dir: Path, spool: Path) -> None:
        rank = rank_of(client_id, spec.ranks)
        self.stays = spec.rows_on == "worker"
        self._shard = Shard(
            run_id=spec.run_id,
            run_salt=spec.run_salt,
            scenario_sha256=scenario_sha256(spec.scenario_json),
            worker_id=f"w{rank}",
            rank=rank,
            client_id=client_id,
            host=client_id.split("_")[0],
        )
        if self.stays:
            name = shard_folder_name(self._shard.worker_id, client_id)
            self.folder = (run_dir / spec.run_id / SHARDS_FOLDER / name).absolute()
        else:
            self.folder = spool / spec.run_id / client_id

    def begin(self) -> None:
        """Make the folder with `shard.json`; raises ShardError, also where rows are already."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if self.stays and os.listdir(self.folder):
                raise ShardError(f"the shard folder {self.folder} is not empty: give --run-id")
            write_shard(self.folder, self._shard)
        except OSError as error:
            raise ShardError(
                f"the shard folder {self.folder} cannot be made ({error.strerror}): give the "
                f"worker a --{'run' if self.stays else 'spool'}-dir that can be written"
            ) from None

    def seal(self, status: tally.Status) -> None:
        """All rows are written: say how many, with what the worker knows of itself."""
        shard = self._shard
        shard.clock_offset_s = tally.number(status, "clock_offset_s")
        shard.clock_offset_error_s = tally.number(status, "clock_offset_error_s")
        shard.planned = tally.total([status], "planned")
        shard.sent = tally.total([status], "sent")
        shard.dropped = tally.total([status], "dropped")
        shard.files = sealed(self.folder)
        shard.state = "complete"
        write_shard(self.folder, shard)

    def status(self, rows: RowCounts) -> dict[str, Any]:
        """What goes to the master instead of rows; nothing where these go."""
        if not self.stays:
            return {}
        return {"kept_in": str(self.folder), "kept_rows": dict(rows.written)}

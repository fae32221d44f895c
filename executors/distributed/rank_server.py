"""The process of a rank other than 0: it executes rank 0's commands until rank 0 ends.

It prints nothing, unless it fails while it cannot report to rank 0.
"""

import os
import sys
import time
from typing import Any

from executors.distributed.control import ControlChannel, Named, join_channel
from executors.distributed.loaded_plans import LoadedPlans, as_parameters, cpu_seconds
from executors.distributed.ranks import Ranks
from executors.errors import GRACE_S, PeerLostError
from simulator.model.user_code import brief
from simulator.plan.json import load
from traces.errors import SchedcastError
from traces.process import ignore_stopping, stopped_status, terminated

#: Commands that every process executes in step with the others. A failure here ends the process, since the others are waiting for it.
COLLECTIVE_COMMANDS = ("run", "trace", "peak_bytes", "current")


def serve_rank(ranks: Ranks) -> int:
    """Execute rank 0's commands. Returns the status to exit with."""
    ignore_stopping()  # Ctrl-C and SIGTERM reach every process; rank 0 handles them, and when it ends its connections close
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    try:
        channel = join_channel(ranks)
        return channel if isinstance(channel, int) else RankServer(channel).serve()
    except PeerLostError:
        return stopped_status() if terminated() else 1
    except SchedcastError as error:
        return _report(ranks, str(error), error.exit_status)
    except Exception as error:
        return _report(ranks, f"failed: {brief(error)}", 1)


def _report(ranks: Ranks, message: str, status: int) -> int:
    """Print an error that cannot be reported to rank 0. Returns `status`."""
    time.sleep(GRACE_S)
    print(f"schedcast: process {ranks.rank} of {ranks.world}: {' '.join(message.split())}", file=sys.stderr, flush=True)
    return status


class RankServer:
    """Executes the commands that arrive on a control channel, on this process's device."""

    def __init__(self, channel: ControlChannel):
        self.channel = channel
        self.loaded: LoadedPlans | None = None

    def serve(self) -> int:
        """Execute commands until rank 0 ends. Returns rank 0's exit status."""
        while True:
            message, tensors = self.channel.receive()
            if message["command"] == "end":
                self.channel.close()
                return message["status"]
            execute = self._execute if message["command"] in COLLECTIVE_COMMANDS else self._try
            self.channel.gather(execute(message, tensors))

    def _try(self, message: dict[str, Any], tensors: Named) -> dict[str, Any]:
        """Execute a command, and answer with the error if it fails."""
        try:
            return self._execute(message, tensors)
        except PeerLostError:
            raise
        except Exception as error:
            return {"error": str(error) if isinstance(error, SchedcastError) else brief(error)}

    def _execute(self, message: dict[str, Any], tensors: Named) -> dict[str, Any]:
        """Execute a command. Returns the answer for rank 0."""
        loaded = self.loaded
        if loaded is not None:
            loaded.drop(message.get("dropped", ()))
        match message["command"]:
            case "open":
                self.loaded = LoadedPlans.open(self.channel, message["kind"], message["devices"], message["sms"], message["precision"])
                return {"gpu": self.loaded.gpu}
            case "prepare":
                loaded.prepare(load(message["plan"]), as_parameters(tensors, message["parameters"]))
            case "load":
                loaded.load(message["program"], message["seed"], message["keep"], message["iteration"], message["before"])
            case "cpu_seconds":
                return cpu_seconds()
            case "run":
                names = message["feeds"]
                feeds = None if names is None else [{name: tensors[f"{i} {name}"] for name in names} for i in range(message["steps"])]
                return loaded.run(message["program"], message["steps"], feeds)
            case "trace":
                return loaded.trace(message["program"])
            case "difference":
                return loaded.difference(message["program"], tensors, message["gradients"])
            case "current":
                loaded.send_current(message["program"], message["names"])
            case "peak_bytes":
                return loaded.peak_bytes(message["seed"])
        return {}

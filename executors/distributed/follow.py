"""A process that follows: it does what the leader says until the leader ends. It says nothing, unless it fails where nobody can be told."""

import os
import signal
import sys
import time
from typing import Any

from executors.distributed.control import ControlChannel, Named, join
from executors.distributed.programs import LoadedPlans, as_parameters, cpu_seconds
from executors.distributed.ranks import Ranks
from executors.errors import GRACE_S, PeerLostError
from simulator.models.factory import brief
from simulator.plan.json import load
from traces.errors import StepcastError


def follow(ranks: Ranks) -> int:
    """Serve the leader; the status to exit with."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all: the leader decides, and when it ends its connections close
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    try:
        channel = join(ranks)
        return channel if isinstance(channel, int) else RankServer(channel).serve()
    except PeerLostError:
        return 1
    except StepcastError as error:
        return _said(ranks, str(error), error.exit_status)
    except Exception as error:
        return _said(ranks, f"failed: {brief(error)}", 1)


def _said(ranks: Ranks, what: str, status: int) -> int:
    time.sleep(GRACE_S)
    print(f"stepcast: process {ranks.rank} of {ranks.world}: {' '.join(what.split())}", file=sys.stderr, flush=True)
    return status


class RankServer:
    """What has been opened and loaded here."""

    def __init__(self, channel: ControlChannel):
        self.channel = channel
        self.parts: LoadedPlans | None = None

    def serve(self) -> int:
        """Until the end; the leader's status."""
        while True:
            message, tensors = self.channel.receive()
            if message["do"] == "end":
                self.channel.close()
                return message["status"]
            # In the middle of a run others wait for this process: a failure ends all.
            together = message["do"] in ("run", "trace", "peak_bytes")
            self.channel.gather(self._do(message, tensors) if together else self._tried(message, tensors))

    def _tried(self, message: dict[str, Any], tensors: Named) -> dict[str, Any]:
        try:
            return self._do(message, tensors)
        except PeerLostError:
            raise
        except Exception as error:
            return {"error": str(error) if isinstance(error, StepcastError) else brief(error)}

    def _do(self, message: dict[str, Any], tensors: Named) -> dict[str, Any]:
        parts = self.parts
        if parts is not None:
            parts.drop(message.get("dropped", ()))
        match message["do"]:
            case "open":
                self.parts = LoadedPlans.open(self.channel, message["kind"], message["devices"], message["sms"], message["precision"])
            case "load":
                given = as_parameters(tensors, message["parameters"])
                parts.load(message["program"], load(message["plan"]), given, message["seed"], message["keep"])
            case "cpu_seconds":
                return cpu_seconds()
            case "run":
                feeds = message["feeds"]
                split = None if feeds is None else [{name: tensors[f"{i} {name}"] for name in feeds} for i in range(message["steps"])]
                return parts.run(message["program"], message["steps"], split)
            case "trace":
                return parts.trace(message["program"])
            case "difference":
                return parts.difference(message["program"], tensors)
            case "peak_bytes":
                return parts.peak_bytes(load(message["plan"]), as_parameters(tensors, message["parameters"]), message["seed"])
        return {}

"""Writes recordings as `nsys export --type sqlite` does, in the tables of version 2024.6 (schema 3.16) that a replay needs."""

import re
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from traces.formats.nsys import DIRECTIONS, MEMORIES
from traces.formats.recording import MEMCPY, MEMSET, CallKind, Recording, Work

_COMMON = (
    "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, greenContextId INTEGER,"
    " streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER"
)
SCHEMA = f"""
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT, localTime TEXT);
CREATE TABLE TARGET_INFO_GPU (vmId INTEGER NOT NULL, id INTEGER NOT NULL, name TEXT, totalMemory INTEGER, smCount INTEGER, cuDevice INTEGER,
    maxShmemPerSm INTEGER, maxRegistersPerSm INTEGER, threadsPerWarp INTEGER, maxWarpsPerSm INTEGER, computeMajor INTEGER,
    computeMinor INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({_COMMON}, demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL,
    registersPerThread INTEGER NOT NULL, gridX INTEGER NOT NULL, gridY INTEGER NOT NULL, gridZ INTEGER NOT NULL, blockX INTEGER NOT NULL,
    blockY INTEGER NOT NULL, blockZ INTEGER NOT NULL, staticSharedMemory INTEGER NOT NULL, dynamicSharedMemory INTEGER NOT NULL,
    graphNodeId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY ({_COMMON}, bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL, srcKind INTEGER, dstKind INTEGER,
    graphNodeId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET ({_COMMON}, value INTEGER NOT NULL, bytes INTEGER NOT NULL, graphNodeId INTEGER, memKind INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE ({_COMMON}, graphId INTEGER, graphExecId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, globalTid INTEGER,
    correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_SYNCHRONIZATION ({_COMMON}, syncType INTEGER NOT NULL, eventId INTEGER NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_CUDA_EVENT (deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, streamId INTEGER NOT NULL,
    correlationId INTEGER, globalPid INTEGER, eventId INTEGER NOT NULL);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, text TEXT, globalTid INTEGER, textId INTEGER);
CREATE TABLE ENUM_CUDA_MEM_KIND (id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT);
"""
#: CUPTI's kinds of synchronization.
_KINDS = {CallKind.EVENT_SYNC: 1, CallKind.STREAM_WAIT: 2, CallKind.STREAM_SYNC: 3, CallKind.DEVICE_SYNC: 4}
#: CUPTI's id of no stream.
NO_STREAM = 2**32 - 1


class Export:
    """One database, to which recordings are added as processes."""

    def __init__(self, path: Path):
        path.unlink(missing_ok=True)
        self.path, self.database = path, sqlite3.connect(path)
        self.database.executescript("PRAGMA page_size = 512;" + SCHEMA)
        self.database.executemany("INSERT INTO ENUM_CUDA_MEM_KIND VALUES (?, '', ?)", MEMORIES.items())
        self._ids: dict[str, int] = {}

    def close(self) -> Path:
        """Write the database and return its path."""
        self.database.commit()
        self.database.close()
        return self.path

    def insert(self, table: str, **cells: object) -> None:
        """Insert a row; columns that must have a value and are not given are 0."""
        needed = [row[1] for row in self.database.execute(f"PRAGMA table_info({table})") if row[3]]
        cells = dict.fromkeys(needed, 0) | cells
        names, marks = ", ".join(cells), ", ".join("?" * len(cells))
        self.database.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", tuple(cells.values()))

    def string(self, text: str) -> int:
        """Return the id of a string."""
        if text not in self._ids:
            self._ids[text] = len(self._ids) + 1
            self.insert("StringIds", id=self._ids[text], value=text)
        return self._ids[text]

    def add(self, recording: Recording, pid: int = 4711) -> None:
        """Add a process. Its threads have the numbers of the recording, and its calls the versions that CUDA gives them."""
        process = pid << 24
        correlation = {index: call.correlation for index, call in enumerate(recording.calls)}
        for index, call in enumerate(recording.calls):
            self.insert(
                "CUPTI_ACTIVITY_KIND_RUNTIME", start=_ns(call.start_s), end=_ns(call.end_s), globalTid=process | call.thread,
                correlationId=call.correlation, nameId=self.string(f"{call.name}_v7000"),
            )  # fmt: skip
            sync = recording.syncs.get(index)
            if sync is not None:
                self._sync(call.correlation, process, _KINDS[call.kind], sync)
        for work in recording.works:
            self._work(work, process, correlation.get(work.call, 0))
        for operator in recording.operators.all:
            self.range(operator.name, _ns(operator.start_s), _ns(operator.end_s), process | operator.thread)
        ranges = {(operator.name, _ns(operator.start_s)) for operator in recording.operators.all}
        for name, start_s, end_s in recording.annotations:
            if (name, _ns(start_s)) not in ranges:
                self.range(name, _ns(start_s), _ns(end_s), process, kind=60)

    def range(self, name: str, start: int, end: int, thread: int, kind: int = 59) -> None:
        """Add an NVTX range."""
        self.insert("NVTX_EVENTS", start=start, end=end, eventType=kind, text=name, globalTid=thread)

    def _sync(self, correlation: int, process: int, kind: int, sync) -> None:
        event = 0
        if sync.record_correlation >= 0:
            event = sync.record_correlation
            self.insert(
                "CUPTI_ACTIVITY_KIND_CUDA_EVENT", streamId=sync.wait_on_stream, correlationId=event, globalPid=process, eventId=event
            )
        self.insert(
            "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", streamId=sync.stream if sync.stream >= 0 else NO_STREAM, correlationId=correlation,
            globalPid=process, syncType=kind, eventId=event,
        )  # fmt: skip

    def _work(self, work: Work, process: int, correlation: int) -> None:
        row = {
            "start": round(work.start_s * 1e9), "end": round(work.end_s * 1e9), "deviceId": work.device, "streamId": work.stream,
            "correlationId": correlation, "globalPid": process,
        }  # fmt: skip
        if work.category == MEMCPY:
            direction, source, target = re.fullmatch(r"Memcpy (\w+) \((.*) -> (.*)\)", work.name).groups()
            kinds = {name: number for number, name in MEMORIES.items()}
            row |= {"copyKind": next(n for n, name in DIRECTIONS.items() if name == direction), "bytes": int(work.bytes)}
            self.insert("CUPTI_ACTIVITY_KIND_MEMCPY", **row, srcKind=kinds[source], dstKind=kinds[target])
        elif work.category == MEMSET:
            kinds = {f"Memset ({name})": number for number, name in MEMORIES.items()}
            self.insert("CUPTI_ACTIVITY_KIND_MEMSET", **row, bytes=int(work.bytes), memKind=kinds.get(work.name, 7))
        else:
            name = self.string(work.name)
            self.insert(
                "CUPTI_ACTIVITY_KIND_KERNEL", **row, demangledName=name, shortName=name, registersPerThread=work.registers, gridX=work.grid,
                gridY=1, gridZ=1, blockX=work.block, blockY=1, blockZ=1, dynamicSharedMemory=work.shared_bytes,
            )  # fmt: skip


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def write_export(path: Path, recordings: Sequence[Recording]) -> Path:
    """Write recordings as the processes of one export."""
    export = Export(path)
    export.insert("TARGET_INFO_SESSION_START_TIME", utcEpochNs=min(recording.origin_ns for recording in recordings))
    for number, recording in enumerate(recordings):
        export.add(recording, pid=4711 + number)
    return export.close()

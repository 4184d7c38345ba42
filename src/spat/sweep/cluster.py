"""Ray: a process for each run, on this machine or on the machines of a cluster.

Ray schedules, starts processes and notices when one dies. Nothing but a task and how it ended goes
through it: progress is read from the run folders, so they must lie where all machines see them.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import socket
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self

from spat.errors import UserError
from spat.sweep.task import Ending, Task, attempt

LOCAL = "local"
ANSWER_SECONDS = 5.0
MOST_PORTS = 65535
SHARED_MEMORY = 80 * 2**20  # close to Ray's least: a task and its ending are small


@dataclass
class Cluster:
    """Tasks in, endings out.

    address: of a running Ray cluster, or `auto`; by default one of this machine alone
    workers: at most so many runs at once; by default as many as there is room for
    cpus, gpus: that a run takes, parts of one allowed; gpus None: one where there are any
    """

    address: str | None = None
    workers: int | None = None
    cpus: float = 1.0
    gpus: float | None = None
    _ray: Any = None
    _queue: deque[Task] = field(default_factory=deque)
    _running: dict[Any, str] = field(default_factory=dict)

    def __enter__(self) -> Self:
        self._ray = _imported()
        with contextlib.ExitStack() as stack:
            stack.enter_context(_unheard())
            stack.callback(self._ray.shutdown)
            self._connect()
            self._require_room()
            self._remote = self._ray.remote(attempt).options(
                num_cpus=self.cpus, num_gpus=self.gpus, max_retries=0
            )
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def start(self, task: Task) -> None:
        """Run it as soon as there is room."""
        self._queue.append(replace(task, threads=max(1, int(self.cpus))))
        self._fill()

    def ended(self, seconds: float) -> Iterator[tuple[str, Ending]]:
        """The runs that have ended, waiting so long for one."""
        done, _ = self._ray.wait(list(self._running), timeout=seconds)
        for reference in done:
            yield self._running.pop(reference), self._ending(reference)
        self._fill()

    def _fill(self) -> None:
        while self._queue and (self.workers is None or len(self._running) < self.workers):
            task = self._queue.popleft()
            self._running[self._remote.remote(task)] = task.name

    def _ending(self, reference: Any) -> Ending:
        errors = self._ray.exceptions
        try:
            ending: Ending = self._ray.get(reference)
        except errors.OutOfMemoryError:
            return Ending("lost", "its process was ended because the machine ran out of memory.")
        except errors.RayTaskError as error:  # not even the task began: no spat there, or another
            return Ending("failed", f"its process could not begin: {error.cause}.", str(error))
        except errors.RayError:
            return Ending("lost", "its process was killed, or its machine is gone.")
        return ending

    def _connect(self) -> None:
        if self.address is not None:
            _require_answer(self.address)
        local = {"include_dashboard": False, "object_store_memory": SHARED_MEMORY}
        given = {"address": LOCAL, **local} if self.address is None else {"address": self.address}
        try:
            with _deaf():
                self._ray.init(**given, log_to_driver=False, logging_level="ERROR")
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            where = "on this machine" if self.address is None else f"at {self.address}"
            text = str(error).strip().partition("\n")[0].rstrip(".")
            raise UserError(f"could not start a sweep on a Ray cluster {where}: {text}.") from None

    def _require_room(self) -> None:
        """Ray waits for ever for a machine that is not there."""
        machines = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        if self.gpus is None:
            self.gpus = 1.0 if any(one.get("GPU", 0) >= 1 for one in machines) else 0.0
        asked = {"CPU": self.cpus, "GPU": self.gpus}
        if any(all(one.get(key, 0) >= n for key, n in asked.items()) for one in machines):
            return
        most = ", ".join(f"{one.get('CPU', 0):g} and {one.get('GPU', 0):g}" for one in machines)
        raise UserError(
            f"a run asks for {self.cpus:g} CPUs and {self.gpus:g} GPUs, and no machine has both "
            f"(they have {most}): lower --cpus-per-run or --gpus-per-run."
        )


def _require_answer(address: str) -> None:
    """Ray tries for minutes to reach a machine that is not there."""
    host, _, port = address.rpartition(":")
    if "/" in address or not host or not port.isdecimal() or int(port) > MOST_PORTS:
        return  # `auto`, ray://host:port, or something of which Ray knows what is wrong with it
    try:
        socket.create_connection((host, int(port)), ANSWER_SECONDS).close()
    except OSError as error:
        reason = error.strerror or "no answer"
        raise UserError(f"there is no Ray cluster at {address}: {reason}.") from None


@contextmanager
def _unheard() -> Iterator[None]:
    """Ray prints to standard output what a lost process is to it; the sweep says so itself."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


@contextmanager
def _deaf() -> Iterator[None]:
    """What is started here ignores the end of the terminal: the runs outlive it, and save."""
    if not hasattr(signal, "SIGHUP"):
        yield
        return
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


def _imported() -> Any:
    """Ray, which is not to report on its users."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise UserError('a sweep needs the package ray: pip install "spat[ray]".') from None

"""Processes that know of each other and wait for a word, so that teams of several sizes take turns.

A script starts teams of itself; in their processes it calls `serve`. A word goes to each process of
a team as a line, what it answers comes back as a line of JSON.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Self

from spat.world import World, joined

MEMBER = "--member"  # the first word of a script that runs as one of a team


class Team:
    """`size` processes of one thread each that run a script with these words."""

    def __init__(self, size: int, script: str, *words: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(size)}
        self.members = [
            subprocess.Popen(
                [sys.executable, script, MEMBER, *words],
                env={**os.environ, **common, "RANK": str(rank), "OMP_NUM_THREADS": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(size)
        ]

    def ask(self, *words: object) -> list[Any]:
        """The answer of each member; it takes as long as the slowest needs."""
        self.tell(*words)
        return self.hear()

    def tell(self, *words: object) -> None:
        for member in self.members:
            assert member.stdin is not None
            print(*words, file=member.stdin, flush=True)

    def hear(self) -> list[Any]:
        return [json.loads(self._line(member)) for member in self.members]

    def _line(self, member: subprocess.Popen[str]) -> str:
        assert member.stdout is not None
        line = member.stdout.readline()
        if not line:
            raise SystemExit(f"a process of the team ended with code {member.wait()}")
        return line

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for member in self.members:
            assert member.stdin is not None
            member.stdin.close()  # nobody asks any more
        for member in self.members:
            member.wait()


def serve(answer: Callable[[World, list[str]], Any]) -> None:
    """What a member does: join the others, then answer each line until none comes."""
    with joined() as world:
        for line in sys.stdin:
            print(json.dumps(answer(world, line.split())), flush=True)

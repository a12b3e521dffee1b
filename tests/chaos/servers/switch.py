"""A proxy before a server, which can be switched over to answering 500 or 401, or never."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from enum import Enum
from typing import Self

PIECE_BYTES = 2**16


class Mode(Enum):
    """What the proxy does with what it gets."""

    PASS = "pass"
    """It hands every byte on, those of websockets, too."""
    ANSWERS_500 = "500 Internal Server Error"
    ANSWERS_401 = "401 Unauthorized"
    SILENT = "silent"
    """It accepts connections, and reads, and no byte comes from it, on older connections either."""


class Switch:
    """The proxy, on a port of its own, in a thread of its own while it is entered."""

    def __init__(self, port: int) -> None:
        """Before the server on `port` of this machine."""
        self.missed: list[str] = []
        """The first line of each request that did not reach the server."""
        self._server_port = port
        self._mode = Mode.PASS
        self._open: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="switch")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def turn(self, mode: Mode) -> None:
        """Switch over; connections that are open end, if they are not just to fall silent."""
        asyncio.run_coroutine_threadsafe(self._turn(mode), self._loop).result()

    def __enter__(self) -> Self:
        self._thread.start()
        listening = asyncio.start_server(self._accept, "127.0.0.1", 0)
        self._listening = asyncio.run_coroutine_threadsafe(listening, self._loop).result()
        self._port: int = self._listening.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _turn(self, mode: Mode) -> None:
        self._mode = mode
        ending = set() if mode is Mode.SILENT else set(self._open)
        for one in ending:
            one.transport.abort()
        # Whoever asks next finds no connection that is about to end.
        await asyncio.gather(*(one.wait_closed() for one in ending), return_exceptions=True)

    async def _end(self) -> None:
        self._listening.close()
        for one in self._serving:
            one.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def _accept(self, questions: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        # A task of its own: asyncio's one would be reported if it is cancelled.
        task = asyncio.ensure_future(self._serve(questions, answers))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, questions: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        self._open.add(answers)
        # One of the sides hung up, or the switch was turned.
        with suppress(OSError, EOFError):
            if self._mode in (Mode.ANSWERS_500, Mode.ANSWERS_401):
                await self._refuse(questions, answers, self._mode)
            else:
                await self._hand_on(questions, answers)
        self._open.discard(answers)
        answers.transport.abort()

    async def _refuse(
        self, questions: asyncio.StreamReader, answers: asyncio.StreamWriter, mode: Mode
    ) -> None:
        while True:
            head = await questions.readuntil(b"\r\n\r\n")
            self._note(head)
            for line in head.lower().split(b"\r\n"):
                if line.startswith(b"content-length:"):
                    await questions.readexactly(int(line.split(b":")[1]))
            answer = f"HTTP/1.1 {mode.value}\r\nContent-Length: 2\r\n\r\n{{}}"
            answers.write(answer.encode())
            await answers.drain()

    async def _hand_on(
        self, questions: asyncio.StreamReader, answers: asyncio.StreamWriter
    ) -> None:
        if self._mode is Mode.SILENT:
            while piece := await questions.read(PIECE_BYTES):
                self._note(piece)
            return
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._server_port)
        self._open.add(to_server)
        ways = [
            asyncio.ensure_future(self._pump(questions, to_server)),
            asyncio.ensure_future(self._pump(from_server, answers)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            self._open.discard(to_server)
            to_server.transport.abort()

    async def _pump(self, source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        while piece := await source.read(PIECE_BYTES):
            if self._mode is Mode.PASS:
                to.write(piece)
                await to.drain()
            else:
                self._note(piece)

    def _note(self, piece: bytes) -> None:
        first = piece.partition(b"\r\n")[0]
        if first.endswith(b" HTTP/1.1"):
            self.missed.append(first.decode())

"""Commands sent to the store and not yet answered, so that the master can work meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from hiredis import pack_command
from redis.exceptions import RedisError, ResponseError

if TYPE_CHECKING:
    from redis import Redis

StoreCommand = tuple[str | int | bytes, ...]


class InFlight:
    """Commands sent over their own connection. Errors are raised on reading; the commands may have taken effect."""

    def __init__(self, store: Redis, commands: Sequence[StoreCommand]) -> None:
        self._pool = store.connection_pool
        self._count = len(commands)
        self._error: RedisError | None = None
        self._connection: Any = None
        try:
            self._connection = self._pool.get_connection()
            self._connection.send_packed_command([b"".join(map(_packed, commands))])
        except RedisError as error:
            self._error = error

    def answers(self) -> list[Any]:
        """Wait for all answers and release the connection. Raises: redis-py's errors, also the store's."""
        found = self.all()
        for answer in found:
            if isinstance(answer, RedisError):
                raise answer
        return found

    def all(self) -> list[Any]:
        """Wait for all answers, including errors of the store, and release the connection. Raises: as `read`."""
        found = [self.read() for _ in range(self._count)]
        self.release()
        return found

    def read(self) -> Any:  # noqa: ANN401 - the answer of any command
        """Wait for the next answer; an error of the store is returned. Raises: redis-py's errors of the connection."""
        try:
            if self._error is not None:
                raise self._error
            return self._connection.read_response()
        except ResponseError as error:
            return error
        except RedisError:
            self.abandon()
            raise

    def ask(self, *command: str | int | bytes) -> Any:  # noqa: ANN401 - the answer of any command
        """Send one more command after all answers are read, and wait for its answer; as `read`."""
        try:
            self._connection.send_packed_command([_packed(command)])
        except RedisError:
            self.abandon()
            raise
        return self.read()

    @property
    def server(self) -> tuple[str, str]:
        """Host and port of the server; empty for a Unix socket."""
        return str(getattr(self._connection, "host", "")), str(getattr(self._connection, "port", ""))

    def release(self) -> None:
        """Return the connection to the pool, once all answers are read."""
        self._pool.release(self._connection)

    def abandon(self) -> None:
        """Ignore the answers and close the connection."""
        if self._connection is not None:
            self._connection.disconnect()
            self.release()
            self._connection = None


def carry_out(store: Redis, commands: Iterable[StoreCommand]) -> None:
    """Send the commands together and wait for the store. Raises: redis-py's errors."""
    pipeline = store.pipeline(transaction=False)
    for command in commands:
        pipeline.execute_command(*command)  # type: ignore[no-untyped-call]
    pipeline.execute()


def _packed(command: StoreCommand) -> bytes:
    packed: bytes = pack_command(command)  # type: ignore[arg-type]  # its stub accepts one word only
    return packed

"""What the FILE of `fairlog pool` says: which workers, how many, and who provides them."""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from fairlog.cli.params import read_duration, read_size
from scheduler.model.errors import FairlogError
from scheduler.model.resources import Resources, amounts_of

if TYPE_CHECKING:
    from pathlib import Path

MOST = 1_000
"""The most workers of a pool."""
_NAME = r"^[a-z0-9][a-z0-9.-]{0,39}$"


class BadPool(FairlogError):
    """The file does not describe a pool."""


def _read(how: Any, value: object) -> object:  # noqa: ANN401 (a reader of params)
    """What an option of the command line would make of it. Raises: ValueError."""
    if not isinstance(value, str):
        return value
    try:
        return how(value)
    except click.BadParameter as error:
        raise ValueError(error.message) from None


Duration = Annotated[int, BeforeValidator(lambda value: _read(read_duration, value)), Field(ge=0, le=30 * 86_400)]
Size = Annotated[int, BeforeValidator(lambda value: _read(read_size, value)), Field(ge=1)]
Words = Annotated[tuple[str, ...], Field(min_length=1)]
Count = Annotated[int, Field(ge=1, le=100_000)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Commands(_Part):
    """Workers that commands of the operator start, stop and list.

    In the words, `{worker}`, `{cores}` and `{memory}` (MiB) stand for the worker's. `start` and `stop` of what is there
    or gone already do nothing; `list` prints the names of what is there, one a line, `leaving` after one that is about
    to be taken away.
    """

    kind: Literal["command"]
    start: Words
    stop: Words
    list: Words
    timeout: Duration = 120


class Slurm(_Part):
    """Workers that are jobs of Slurm; `options` are further ones of sbatch."""

    kind: Literal["slurm"]
    options: tuple[str, ...] = ()
    program: Words = ("fairlog",)
    notice: Duration = 60
    """How long before the end of its time a job is told (`sbatch --signal`)."""
    timeout: Duration = 120


class Kubernetes(_Part):
    """Workers that are pods of an image, asked for at Kubernetes' API; `pod` is merged into the spec of each.

    `server` is the API's URL, such as that of `kubectl proxy`; "" in a pod, whose service account is used.
    """

    kind: Literal["kubernetes"]
    image: str
    namespace: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")] = "fairlog-workers"
    server: Annotated[str, Field(pattern=r"^(https?://.+)?$")] = ""
    pod: dict[str, Any] = {}
    timeout: Duration = 30


class Pool(_Part):
    """A pool: `least` to `most` workers of one size, named NAME-1, NAME-2 and so on.

    A worker that had nothing to do for `cool_down` (s) is let go; one that has not joined within `start_within` (s) of
    its start is given up. The pool looks every `every` (s). `price` is that of a worker for an hour.
    """

    name: Annotated[str, Field(pattern=_NAME)]
    least: Annotated[int, Field(ge=0, le=MOST)] = 0
    most: Annotated[int, Field(ge=0, le=MOST)]
    cores: Count
    memory: Size
    resources: dict[str, Count] = {}
    labels: dict[str, str] = {}
    options: tuple[str, ...] = ()
    """Further options of `fairlog worker`."""
    api: str = ""
    """The URLs at which workers find API servers; "" = those that the pool itself uses."""
    cool_down: Duration = 300
    start_within: Annotated[Duration, Field(ge=1)] = 600
    every: Annotated[Duration, Field(ge=1)] = 5
    price: Annotated[float, Field(ge=0)] | None = None
    currency: Annotated[str, Field(max_length=20)] = ""
    provider: Annotated[Commands | Slurm | Kubernetes, Field(discriminator="kind")]

    @model_validator(mode="after")
    def _check(self) -> Pool:
        if self.least > self.most:
            raise ValueError(f"least is {self.least}, and most only {self.most}")
        return self

    @property
    def each(self) -> Resources:
        """What one worker offers."""
        return Resources(self.cores, self.memory, amounts_of(self.resources))

    def worker(self, number: int) -> str:
        """The id of the worker of that number."""
        return f"{self.name}-{number}"

    def number(self, worker: str) -> int | None:
        """The number of a worker of this pool; None if it is none."""
        found = re.fullmatch(rf"{re.escape(self.name)}-([1-9]\d{{0,3}})", worker, re.ASCII)
        return None if found is None else int(found[1])


def read_pool(path: Path) -> Pool:
    """The pool that the TOML file describes. Raises: BadPool naming what is wrong; OSError."""
    try:
        return Pool.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadPool(f"{path} is not TOML: {error}") from None
    except ValidationError as error:
        raise BadPool(f"{path}: {_in_words(error)}; docs/pools.md shows a whole file") from None


_PATTERNS = {
    "name": "this must be 1 to 40 lower-case letters, digits, dots and hyphens",
    "provider.namespace": "this must be the name of a namespace",
    "provider.server": "this must be a URL that begins with http:// or https://",
}


def _in_words(error: ValidationError) -> str:
    """The first error, as `provider.start: this must be given`."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = [str(part) for part in first["loc"]]
    kinds = {"command", "slurm", "kubernetes"}
    where = ".".join(part for number, part in enumerate(place) if not (part in kinds and number == 1))
    said = {
        "missing": "this must be given",
        "extra_forbidden": "there is no such setting",
        "union_tag_invalid": "kind must be command, slurm or kubernetes",
        "union_tag_not_found": "kind must be given: command, slurm or kubernetes",
        "string_pattern_mismatch": _PATTERNS.get(where, "this is not written as it must be"),
    }.get(first["type"], first["msg"].removeprefix("Value error, "))
    return f"{where}: {said}" if where else said

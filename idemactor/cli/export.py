"""``idemactor export``."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

import click

from idemactor.cli.tools import (
    DIRECTORY,
    FILE,
    config_option,
    epilog,
    members,
    report,
    told_as_owner,
    working,
)
from idemactor.errors import StartError

_EXAMPLE: Final = "idemactor export /backup/idemactor-2026-11-30 --output everything.jsonl"
_NO_NAMELESS: Final = frozenset({errno.EOPNOTSUPP, errno.EISDIR})
"""What a file system or a kernel says that has no O_TMPFILE: see open(2)."""


@click.command(epilog=epilog(_EXAMPLE))
@click.argument("data_dir", type=DIRECTORY)
@click.option(
    "--output", type=FILE, metavar="FILE", help="A new file, a device or a pipe; else, or -: standard output."
)
@click.option("--without-outcomes", is_flag=True, help="Of outcomes write only the status, not what they say.")
@config_option
@click.option("--json", "as_json", is_flag=True, help="Write the report as one line of JSON; only beside --output.")
def export(
    data_dir: Path, output: Path | None, without_outcomes: bool, config_path: Path | None, as_json: bool
) -> None:
    """Write everything in DATA_DIR, a backup or one that no server uses, as lines of JSON.

    What is written is as secret as the directory, and what that holds encrypted is written in clear: it takes the
    key. With --without-outcomes, intents and events that are still to be
    delivered are in it all the same, and a replay of what was left out tells its status alone.
    """
    from idemactor.storage.exporting import export as write_out

    if as_json and output is None:
        raise click.UsageError("--json needs --output: standard output has the export.")
    with working(as_json=as_json, config_path=config_path) as progress:
        keys = told_as_owner(config_path, output, data_dir).keys
        with _blamed(output), _destination(data_dir, output) as file:
            write = _writer(file, output)
            end = write_out(data_dir, write, progress, outcomes=not without_outcomes, keys=keys)
            file.flush()
    if output is not None:
        lines = [f"{output}: {end.entries} entries, {end.events} events, {end.incidents} incidents"]
        report(as_json, {"output": str(output)} | members(end), lines)


def _writer(file: BinaryIO, output: Path | None) -> Callable[[bytes], object]:
    """Writes into the destination; what that refuses is said of it here, and not of what is read."""

    def write(line: bytes) -> None:
        with _blamed(output):
            file.write(line)

    return write


@contextlib.contextmanager
def _blamed(output: Path | None) -> Iterator[None]:
    """What the operating system refuses is said of the destination."""
    from idemactor.storage.directory import explain

    try:
        yield
    except BrokenPipeError:  # Who reads an export has seen enough.
        raise
    except OSError as error:
        raise explain(Path("standard output") if output is None else output, error, "") from error


@contextlib.contextmanager
def _destination(data_dir: Path, output: Path | None) -> Iterator[BinaryIO]:
    """Standard output, a device or pipe that is written to, or a new file that has its name once it is whole.

    Raises:
        StartError: It cannot be that place.
        OSError: It cannot be written.
    """
    if output is None:
        yield sys.stdout.buffer
        return
    from idemactor.storage.sqlite_create import sync_path

    _refuse_place(data_dir, output)
    if output.exists():
        # What is no file has no name to take, and is not made anew.
        with open(os.open(output, os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC), "wb") as stream:
            yield stream
        return
    directory = os.open(output.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        nameless = _nameless(directory)
        with _named_at_the_end(output) if nameless is None else _given_a_name(nameless, directory, output) as file:
            yield file
    finally:
        os.close(directory)
    # Where one may write and not read, the name is as durable as the file system makes it by itself.
    with contextlib.suppress(PermissionError):
        sync_path(output.parent)


def _nameless(directory: int) -> int | None:
    """A new file that has no name yet, and that nobody else may read; None where that cannot be.

    It goes with its process, however that ends: what was encrypted and is written in clear is left nowhere.
    """
    try:
        descriptor = os.open(".", os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600, dir_fd=directory)
    except OSError as error:
        if error.errno in _NO_NAMELESS:
            return None
        raise
    if os.path.exists(_name_of(descriptor)):
        return descriptor
    # Without /proc it could get no name in the end.
    os.close(descriptor)
    return None


def _name_of(descriptor: int) -> str:
    return f"/proc/self/fd/{descriptor}"


@contextlib.contextmanager
def _given_a_name(descriptor: int, directory: int, output: Path) -> Iterator[BinaryIO]:
    """The file without a name, which gets that of ``output`` once it is whole."""
    with open(descriptor, "wb") as file:
        yield file
        file.flush()
        os.fsync(descriptor)
        try:
            # With a descriptor of the directory it is linkat(2), which follows the link: link(2) does not.
            os.link(_name_of(descriptor), output.name, dst_dir_fd=directory, follow_symlinks=True)
        except FileExistsError as error:
            raise _overtaken(output) from error


@contextlib.contextmanager
def _named_at_the_end(output: Path) -> Iterator[BinaryIO]:
    """A file that is called otherwise until it is whole. A process that is killed leaves it behind."""
    # Nobody else has this name, and nobody else may read it.
    descriptor, name = tempfile.mkstemp(prefix=f"{output.name}.unfinished-", dir=output.parent)
    scratch = Path(name)
    try:
        with open(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(descriptor)
        if os.path.lexists(output):
            raise _overtaken(output)
        os.rename(scratch, output)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


def _overtaken(output: Path) -> StartError:
    return StartError(f"{output} came to be there meanwhile; name a new file")


def _refuse_place(data_dir: Path, output: Path) -> None:
    """Refuse what would be lost, and what can take no export, before there is one."""
    if output.is_dir():
        raise StartError(f"{output} is a directory; name a new file")
    if output.resolve().is_relative_to(data_dir.resolve()):
        raise StartError(f"{output} is inside of {data_dir}; name a file that is not")
    if output.is_file() or (output.is_symlink() and not output.exists()):
        raise StartError(f"{output} is there already; name a new file, or remove it first")

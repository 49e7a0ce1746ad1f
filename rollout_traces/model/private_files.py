"""Files and folders for this user alone, and whether those that are there already are; advisory locks on them, which their holders' deaths release.

Also tells the file systems of a network, where locks and memory maps are not safe.

Spools, indexes and tokenizers hold rollouts, and a spool's manifest says where they are sent: another user of
the machine must neither read them nor have put them there. Links are never followed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import grp
import logging
import os
import pwd
import stat
import time
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path

from rollout_traces.errors import StoreError
from rollout_traces.model.text import fresh_name, words

FOLDER_MODE = stat.S_IRWXU
FILE_MODE = stat.S_IRUSR | stat.S_IWUSR
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
GROUP = "ROLLOUT_TRACES_GROUP"
"""The environment variable that names a group whose members may read Trackio's folder."""
GROUP_MODE = 0o2750
log = logging.getLogger("rollout_traces")


def shared_group() -> int | None:
    """The id of the group that may read, by `ROLLOUT_TRACES_GROUP`; None for none."""
    name = os.environ.get(GROUP, "")
    if not name:
        return None
    try:
        return int(name) if name.isdecimal() else grp.getgrnam(name).gr_gid
    except (KeyError, ValueError):
        log.warning("%s=%s: there is no such group; files are for this user alone.", GROUP, name)
        return None


def allowed_mode() -> int:
    """The bits of a file's mode that may be set: those of the owner, with a group also its own for reading."""
    return stat.S_IRWXU if shared_group() is None else GROUP_MODE | stat.S_ISUID | stat.S_ISVTX


def make_folder(folder: Path) -> None:
    """Makes a folder, and those above it that are missing, with mode 0700.

    Raises:
        OSError: it cannot be made.
    """
    missing = []
    at = folder
    while not os.path.lexists(at):
        missing.append(at)
        at = at.parent
    for path in reversed(missing):
        path.mkdir(mode=FOLDER_MODE, exist_ok=True)


def take_folder(folder: Path, top: Path) -> None:
    """Makes a folder for this user alone, and closes those of its own on the way that others may enter.

    Args:
        top: the first folder on the way to it that has to be this user's; what lies above it is not looked at.

    Raises:
        StoreError: a folder on the way is a link or another user's.
        OSError: the folder cannot be made.
    """
    for path in _way(folder, top):
        make_folder(path)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EACCES):
                raise StoreError(_sentence(path, _why_foreign(os.lstat(path)) or "cannot be read")) from error
            raise
        try:
            found = os.fstat(fd)
            if found.st_uid != os.geteuid():
                raise StoreError(_sentence(path, _why_foreign(found)))
            if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                os.fchmod(fd, FOLDER_MODE)
        finally:
            os.close(fd)


def why_not_believed(folder: Path, top: Path, files: Iterable[Path] = ()) -> str | None:
    """Why a folder may hold what another user wrote; None when only this user can have.

    Args:
        top: the first folder on the way to it that has to be this user's.
        files: further files and folders in it to look at; those that are missing are passed over.

    Returns:
        One sentence that names the folder or file, its owner and its mode.
    """
    for path in (*_way(folder, top), *files):
        try:
            found = os.lstat(path)
        except FileNotFoundError:
            if path in files:
                continue
            return _sentence(path, "is missing")
        except OSError as error:
            return _sentence(path, f"cannot be looked at ({error.strerror})")
        reason = _why_foreign(found)
        if reason is not None:
            return _sentence(path, reason)
    return None


def why_replaceable(folder: Path) -> str | None:
    """Why another user may put a folder of his in a folder's place, at any time; None when none can.

    Who may write to a folder may rename what is in it, whoever that belongs to, unless the folder is sticky as
    `/tmp` is. Every folder on the way is looked at, also where the way goes through links.

    Args:
        folder: the folder; it need not exist.

    Returns:
        One sentence that names the folder above it that others may write, and its mode.
    """
    whole = folder.absolute()
    for path in dict.fromkeys((*whole.parents, *whole.resolve().parents)):
        try:
            found = path.stat()
        except OSError:
            continue
        if _others_may_write(found) and not found.st_mode & stat.S_ISVTX:
            mode = stat.S_IMODE(found.st_mode)
            return (
                f"{path} may be written by others and is not sticky (mode {mode:04o}): they may put a folder of "
                f"theirs in the place of {folder}. Expected `chmod go-w {path}`, or `chmod +t {path}`."
            )
    return None


def _others_may_write(found: os.stat_result) -> bool:
    """Tells whether anybody but the owner may write: the group that only this user is in does not count."""
    if found.st_mode & stat.S_IWOTH:
        return True
    return bool(found.st_mode & stat.S_IWGRP) and not _is_own_group(found.st_gid)


def _is_own_group(gid: int) -> bool:
    """Tells whether a group is a user's private one: of his name, with nobody else in it. Root's counts too."""
    try:
        group, user = grp.getgrgid(gid), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    return gid == 0 or (group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name})


def open_file(path: Path, flags: int) -> int:
    """A file descriptor of a file that is made with mode 0600; a link in its place is refused.

    Args:
        flags: as of `os.open`; `O_CREAT`, `O_NOFOLLOW` and `O_CLOEXEC` are added.

    Raises:
        OSError: it cannot be opened.
    """
    return os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)


def write_file(path: Path, data: bytes) -> None:
    """Writes a new file with mode 0600.

    Raises:
        OSError: it is there already, or cannot be written.
    """
    with os.fdopen(open_file(path, os.O_WRONLY | os.O_EXCL), "wb") as file:
        file.write(data)


def replace_file(path: Path, data: bytes) -> None:
    """Writes a file with mode 0600; whoever reads it sees what was there before or all that is new.

    Raises:
        OSError: it cannot be written; what was there before stays.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{fresh_name()}")
    try:
        write_file(temporary, data)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def close_files(folder: Path) -> None:
    """Takes what is in a folder away from other users, as where a library wrote it with modes of its choice."""
    for path in folder.rglob("*"):
        if not path.is_symlink():
            with contextlib.suppress(FileNotFoundError):
                path.chmod(FOLDER_MODE if path.is_dir() else FILE_MODE)


def _way(folder: Path, top: Path) -> Iterator[Path]:
    """The folders from `top` down to `folder`."""
    path = top
    yield path
    for part in folder.relative_to(top).parts:
        path /= part
        yield path


def _why_foreign(found: os.stat_result) -> str | None:
    me = os.geteuid()
    if stat.S_ISLNK(found.st_mode):
        return "is a link"
    if found.st_uid != me:
        return f"belongs to user {found.st_uid}, and this is user {me}"
    if found.st_mode & _WRITABLE_BY_OTHERS:
        return f"may be written by others (mode {stat.S_IMODE(found.st_mode):04o})"
    return None


def _sentence(path: Path, reason: str | None) -> str:
    return f"{path} {reason}: nothing in it is believed. Expected a folder of this user's, mode 0700."


MOUNTS = Path("/proc/self/mounts")
"""The kernel's table of mounts."""
NETWORK_TYPES = frozenset(
    words(
        "nfs nfs4 cifs smb3 smbfs lustre beegfs gpfs ceph glusterfs afs 9p wekafs fuse.sshfs fuse.s3fs fuse.gcsfuse"
        " fuse.juicefs fuse.rclone fuse.goofys fuse.weka"
    )
)


def is_network_mount(path: Path, mounts: Path = MOUNTS) -> bool:
    """True when a path is on a network file system.

    Args:
        path: the path; its nearest existing parent is looked at.
    """
    return mount_type(path, mounts) in NETWORK_TYPES


def mount_type(path: Path, mounts: Path = MOUNTS) -> str:
    """The type of a path's file system; empty when it is unknown."""
    try:
        lines = mounts.read_text("utf-8", "replace").splitlines()
    except OSError:
        return ""
    where = path.resolve()
    best, kind = -1, ""
    for line in lines:
        point, this = line.split(" ")[1:3]
        point = point.encode().decode("unicode_escape")
        inside = where == Path(point) or Path(point) in where.parents
        if inside and len(point) >= best:
            best, kind = len(point), this
    return kind


PATIENCE = 1.0
"""Seconds in which one who waits tries for the lock; the worker holds it for some microseconds when it looks."""
_held: weakref.WeakSet[FolderLock] = weakref.WeakSet()


class FolderLock:
    """An exclusive `flock` on a file.

    A child that is forked while the lock is held gives up its copy at once, so that the lock dies with
    its holder and not with the holder's last data-loading worker.

    Args:
        path: the lock's file; it is made when missing.
    """

    _how = fcntl.LOCK_EX

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None

    def acquire(self) -> bool:
        """Takes the lock without waiting.

        Returns:
            False when another process, or another holder in this one, has it or the folder is gone.
        """
        if self._fd is not None:
            return True
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(fd, self._how | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            return False
        self._fd = fd
        _held.add(self)
        return True

    def release(self) -> None:
        """Releases the lock; does nothing when it is not held."""
        if self._fd is not None:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
            self.forget()

    def forget(self) -> None:
        """Closes this process's copy; a process that shares it keeps the lock."""
        if self._fd is not None:
            fd, self._fd = self._fd, None
            os.close(fd)


class SharedLock(FolderLock):
    """The same, held by any number at once, and by none while a `FolderLock` of the file is held."""

    _how = fcntl.LOCK_SH


def is_locked(path: Path) -> bool:
    """True while somebody holds the lock, alone or with others."""
    if not path.exists():
        return False
    probe = FolderLock(path)
    if not probe.acquire():
        return True
    probe.release()
    return False


class Waiters:
    """The lock of processes that wait until a run's records are stored.

    Args:
        path: the lock's file; it is made by the first who waits.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __bool__(self) -> bool:
        """True while somebody waits."""
        return is_locked(self.path)

    @contextlib.contextmanager
    def one_more(self) -> Iterator[None]:
        """Tells the worker that somebody waits. Where that fails, the wait is only longer."""
        lock = SharedLock(self.path)
        deadline = time.monotonic() + PATIENCE
        try:
            while not lock.acquire() and time.monotonic() < deadline and self.path.exists():
                time.sleep(0.001)
            yield
        finally:
            lock.release()


def _let_go_in_child() -> None:
    for lock in list(_held):
        with contextlib.suppress(OSError):
            lock.forget()


os.register_at_fork(after_in_child=_let_go_in_child)

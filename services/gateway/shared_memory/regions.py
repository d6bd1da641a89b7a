"""System shared memory: regions of this host that clients name, for tensors that stay off the wire.

A region belongs to the caller that registered it, by the name of its token: others can neither
use nor see nor unregister it, and may have one of the same name. Without tokens all are one caller.

Regions are read and written through their files, never mapped: a client that cuts its region
short while a request runs gets an error, where a mapping would kill this process.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from services.contracts.errors import InvalidRequestError, NotFoundError
from services.gateway.access.caller import CALLER_NAME
from services.pb import open_inference_v2_pb2 as pb

FOLDER: Final = Path("/dev/shm")  # noqa: S108 - where shm_open keeps its objects on Linux
# Each holds an open file.
MAX_REGIONS: Final = 512
_MAX_NAME_LENGTH: Final = 255
# Not to be led elsewhere by a link, and not to block on a named pipe.
_FLAGS: Final = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_Status = pb.SystemSharedMemoryStatusResponse


class Region:
    """A part of a shared memory object; its file closes with the last user.

    Attributes:
        owner: name of the caller that registered it.
    """

    def __init__(self, request: pb.SystemSharedMemoryRegisterRequest, fd: int, owner: str) -> None:
        """Take over an open file whose size was checked.

        Args:
            request: name, key, offset and size in bytes.
            fd: descriptor of the shared memory object; closed with the region.
            owner: name of the caller that registered it.
        """
        self.name = request.name
        self.key = request.key
        self.owner = owner
        self.offset = request.offset
        self.byte_size = request.byte_size
        self._fd = fd
        self._num_users = 1

    @property
    def fd(self) -> int:
        """The open file, which stays this region's."""
        return self._fd

    def request(self) -> pb.SystemSharedMemoryRegisterRequest:
        """What registers it."""
        return pb.SystemSharedMemoryRegisterRequest(
            name=self.name, key=self.key, offset=self.offset, byte_size=self.byte_size
        )

    @contextmanager
    def held(self) -> Iterator["Region"]:
        """Keep the file open inside a block, also when the region is unregistered meanwhile."""
        self._num_users += 1
        try:
            yield self
        finally:
            self.release()

    def release(self) -> None:
        """One user less."""
        self._num_users -= 1
        if self._num_users == 0:
            os.close(self._fd)

    def check_span(self, offset: int, byte_size: int) -> None:
        """Raise InvalidRequestError when a span does not lie within the region."""
        if offset < 0 or byte_size < 0 or offset + byte_size > self.byte_size:
            raise InvalidRequestError(
                f"Invalid offset + byte size for shared memory region: '{self.name}': expected a "
                f"span within its {self.byte_size} bytes, got {byte_size} bytes at {offset}"
            )

    def read_into(self, room: memoryview, offset: int) -> None:
        """Fill memory with a span that was checked, from any thread.

        Raises:
            InvalidRequestError: the span is not there any more.
        """
        at = self.offset + offset
        byte_size = len(room)
        while room:
            # One call transfers 2 GiB at most.
            num_read = os.preadv(self._fd, [room], at)
            if not num_read:
                raise InvalidRequestError(
                    f"shared memory region '{self.name}' was truncated: {len(room)} of {byte_size} "
                    f"bytes at {offset} are missing"
                )
            room = room[num_read:]
            at = at + num_read

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """Fill a span that was checked, from any thread; raises InvalidRequestError."""
        view = memoryview(data)
        at = self.offset + offset
        try:
            if os.fstat(self._fd).st_size < at + len(view):
                raise OSError("it was truncated")
            while view:
                num_written = os.pwrite(self._fd, view, at)
                view = view[num_written:]
                at = at + num_written
        except OSError as error:
            raise InvalidRequestError(
                f"shared memory region '{self.name}' cannot be written: {error}"
            ) from error


class SharedMemoryRegions:
    """The regions that clients registered with this process, by their owners and names.

    All methods but `all` and `close` are about the regions of the request's caller.
    """

    def __init__(self, folder: Path = FOLDER) -> None:
        """None yet; `folder` is where the system keeps shared memory objects."""
        self._folder = folder
        self._regions = dict[tuple[str, str], Region]()

    def region(self, name: str) -> Region:
        """One region; raises NotFoundError."""
        region = self._regions.get(_key(name))
        if region is None:
            raise NotFoundError(
                f"Unable to find shared memory region: '{name}'; register it first, with the token "
                "of the requests that use it, if they have one"
            )
        return region

    def all(self) -> tuple[Region, ...]:
        """Every region, in the order of their registration."""
        return tuple(self._regions.values())

    def adopt(self, request: pb.SystemSharedMemoryRegisterRequest, fd: int) -> None:
        """Register a region whose file was opened and checked elsewhere; the file is ours now."""
        self.unregister_one(request.name)
        self._regions[_key(request.name)] = Region(request, fd, CALLER_NAME.get())

    def unregister_one(self, name: str) -> None:
        """Forget one region; one that is not known is forgotten already."""
        if region := self._regions.pop(_key(name), None):
            region.release()

    async def status(self, request: pb.SystemSharedMemoryStatusRequest) -> _Status:
        """One region, or for name "" all of them; raises NotFoundError."""
        wanted = [self.region(request.name)] if request.name else self._own()
        regions = {
            r.name: _Status.RegionStatus(
                name=r.name, key=r.key, offset=r.offset, byte_size=r.byte_size
            )
            for r in wanted
        }
        return _Status(regions=regions)

    async def register(
        self, request: pb.SystemSharedMemoryRegisterRequest
    ) -> pb.SystemSharedMemoryRegisterResponse:
        """Open a region.

        Raises:
            InvalidRequestError: a wrong or taken name, a key that is no shared memory object of
                this host, or a size beyond it.
        """
        name = request.name
        if not 0 < len(name) <= _MAX_NAME_LENGTH:
            raise InvalidRequestError(
                f"shared memory region name: expected 1 to {_MAX_NAME_LENGTH} characters, "
                f"got {len(name)}"
            )
        if _key(name) in self._regions:
            raise InvalidRequestError(
                f"shared memory region '{name}' already in manager; unregister it first"
            )
        if len(self._regions) >= MAX_REGIONS:
            raise InvalidRequestError(
                f"{MAX_REGIONS} shared memory regions are registered, which is the most; "
                "unregister those that are not used"
            )
        fd = self._opened(name, request.key)
        try:
            _check_object(fd, request)
        except InvalidRequestError:
            os.close(fd)
            raise
        self.adopt(request, fd)
        return pb.SystemSharedMemoryRegisterResponse()

    async def unregister(
        self, request: pb.SystemSharedMemoryUnregisterRequest
    ) -> pb.SystemSharedMemoryUnregisterResponse:
        """Forget one region, or for name "" all; one that is not known is forgotten already."""
        for name in [request.name] if request.name else [each.name for each in self._own()]:
            self.unregister_one(name)
        return pb.SystemSharedMemoryUnregisterResponse()

    def close(self) -> None:
        """Forget all of them."""
        while self._regions:
            self._regions.popitem()[1].release()

    def _own(self) -> list[Region]:
        return [each for each in self._regions.values() if each.owner == CALLER_NAME.get()]

    def _opened(self, name: str, key: str) -> int:
        file = key.removeprefix("/")
        if not file or file in (".", "..") or "/" in file or "\0" in file:
            raise InvalidRequestError(
                f"shared memory region '{name}': expected the key of a shared memory object, "
                f"without folders, got '{key}'"
            )
        try:
            return os.open(self._folder / file, _FLAGS)
        except OSError as error:
            raise InvalidRequestError(
                f"Unable to open shared memory region: '{name}': key '{key}': {error.strerror}; "
                "it must exist on the gateway's host, for the gateway's user, and be no link"
            ) from error


def _key(name: str) -> tuple[str, str]:
    """Of a region of the request's caller."""
    return CALLER_NAME.get(), name


def _check_object(fd: int, request: pb.SystemSharedMemoryRegisterRequest) -> None:
    # Of the open file: its name may be another object's by now.
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        raise InvalidRequestError(
            f"shared memory region '{request.name}': key '{request.key}' is no shared memory object"
        )
    if request.byte_size == 0 or request.offset + request.byte_size > found.st_size:
        raise InvalidRequestError(
            f"shared memory region '{request.name}': expected 1 byte or more within the "
            f"{found.st_size} bytes of '{request.key}', got {request.byte_size} bytes at "
            f"{request.offset}"
        )

"""Memory that a gateway lends to the replicas of its host: large requests need no copy there.

A gateway reads a large request off the network into a slot of its arena, and sends a replica
its place. The arena and a ledger, one for each replica, are anonymous files of the gateway. LEND
has the numbers of their descriptors there, by which the replica opens them in `/proc`; whose
process it is, the kernel says of the data connection. Where that is not allowed (another user,
another PID namespace) requests are copied.

Slots come back one by one by the ledger, which has a byte for each UNIT_BYTES of the arena: the
gateway sets that of a slot's first unit before it sends the replica the slot's place, and the
replica clears it when nothing there refers to the request any more. A byte costs neither end a
system call. A replica may read a slot after its data connection is lost: until its byte is cleared,
or its process has ended, which a pidfd shows the gateway. Places that were sent and not read by
then come back too: a replica whose connection is lost, and which reads no slot of it any more,
marks all of the ledger.

Replicas can read the arena and nothing else, and neither can change the size of either file while
the other has it in its memory.
"""

import fcntl
import mmap
import os
import struct
from typing import Final

from services.contracts.errors import InvalidRequestError

# Descriptors of the gateway's, of arena and ledger: payload of LEND.
DESCRIPTORS: Final = struct.Struct("!ii")
# Where a request lies in the arena, and how long it is: payload of INFER_LENT.
PLACE: Final = struct.Struct("!QQ")
# Slots are so many of these. Tensors often are a power of two of bytes, and a request has a head
# beside them: 64 KiB with it are one unit.
UNIT_BYTES: Final = 65_536 + 4_096
# Bytes of a ledger, beside 0: the replica may look at the slot, or at none ever again.
LENT: Final = 1
LOST: Final = 2
# A larger request is copied: it would take the place of many.
MAX_SLOT_BYTES: Final = 256 * UNIT_BYTES

# Linux 5.1 and later; Python 3.11 has no name for it.
_SEAL_FUTURE_WRITE: Final = 0x10
_SIZE_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


def sealed_memory(name: str, num_bytes: int, *, is_ours_to_write: bool) -> tuple[int, mmap.mmap]:
    """Anonymous memory that a peer may map: its descriptor, and our own mapping.

    Args:
        name: for `/proc/PID/maps`.
        num_bytes: of it; untouched pages take none.
        is_ours_to_write: later mappings, which are the peer's, can only be read.

    Raises:
        OSError: the kernel has none to give, or is older than Linux 5.1.
    """
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, num_bytes)
        memory = mmap.mmap(descriptor, num_bytes)
        seals = _SIZE_SEALS | (_SEAL_FUTURE_WRITE if is_ours_to_write else 0)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals | fcntl.F_SEAL_SEAL)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, memory


def peers_memory(descriptor: int, *, is_writable: bool) -> mmap.mmap:
    """A mapping of memory that a peer made.

    Raises:
        InvalidRequestError: it could shrink while we look at it, which would end this process;
            or it is empty, or none that can be mapped so.
    """
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
        num_bytes = os.fstat(descriptor).st_size
        wanted = _SIZE_SEALS | (0 if is_writable else _SEAL_FUTURE_WRITE)
        if seals & wanted != wanted or not num_bytes:
            raise InvalidRequestError(
                f"lent memory of {num_bytes} bytes has seals {seals:#x}; wanted some bytes, and "
                f"seals {wanted:#x}"
            )
        access = mmap.PROT_READ | (mmap.PROT_WRITE if is_writable else 0)
        return mmap.mmap(descriptor, num_bytes, mmap.MAP_SHARED, access)
    except (OSError, ValueError) as error:
        raise InvalidRequestError(f"lent memory cannot be mapped: {error}") from error

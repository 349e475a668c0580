"""What a compiler leaves behind: cubin, PTX and metadata, as one checked blob for the disk cache."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import asdict, dataclass

from swordfish.errors import SwordfishError

__all__ = ["FORMAT_VERSION", "Artifact", "ArtifactMetadata", "DamagedArtifactError"]

FORMAT_VERSION = 1
_MAGIC = b"SWFISHK\0"
_HEADER = struct.Struct("<8sIIQQ")  # magic, format version, bytes of metadata, of cubin, of PTX
_DIGEST_BYTES = 32


class DamagedArtifactError(SwordfishError, ValueError):
    """Bytes that are not a whole artifact of this format version; the cache treats them as a miss."""


@dataclass(frozen=True)
class ArtifactMetadata:
    """Facts about a compiled kernel, known without a driver.

    ``registers`` per thread; ``spill_bytes`` per thread (spill stores plus loads as ptxas counts them);
    ``local_bytes`` of stack per thread, spills included; ``shared_bytes`` of static and
    ``dynamic_shared_bytes`` of dynamic shared memory per CTA (0 where the compiler leaves the latter to the
    launch); ``max_threads`` per CTA (0: not bounded by the kernel); ``param_sizes`` in bytes, in order;
    ``toolchain`` names every compiler and its version.
    """

    entry: str
    arch: str
    registers: int
    spill_bytes: int
    local_bytes: int
    shared_bytes: int
    dynamic_shared_bytes: int
    max_threads: int
    param_sizes: tuple[int, ...]
    toolchain: dict[str, str]
    build_seconds: float


@dataclass(frozen=True)
class Artifact:
    """One compiled kernel: what the GPU loads (``cubin``), what the emulator runs (``ptx``), and
    ``metadata``."""

    cubin: bytes
    ptx: str
    metadata: ArtifactMetadata

    def to_bytes(self) -> bytes:
        """Serialise; :meth:`from_bytes` refuses any blob of which even one bit has changed."""
        metadata = json.dumps(asdict(self.metadata), sort_keys=True).encode()
        ptx = self.ptx.encode()
        head = _HEADER.pack(_MAGIC, FORMAT_VERSION, len(metadata), len(self.cubin), len(ptx))
        body = head + metadata + self.cubin + ptx
        return body + hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest()

    @classmethod
    def from_bytes(cls, blob: bytes) -> Artifact:
        """Inverse of :meth:`to_bytes`.

        Raises:
            DamagedArtifactError: truncated, changed, or written by another format version.
        """
        if len(blob) < _HEADER.size + _DIGEST_BYTES:
            raise DamagedArtifactError(f"{len(blob)} bytes are too few for an artifact")
        body, digest = blob[:-_DIGEST_BYTES], blob[-_DIGEST_BYTES:]
        magic, version, metadata_size, cubin_size, ptx_size = _HEADER.unpack_from(body)
        if (magic, version) != (_MAGIC, FORMAT_VERSION):
            raise DamagedArtifactError(f"not an artifact of format version {FORMAT_VERSION}")
        if hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest() != digest:
            raise DamagedArtifactError("the checksum does not match")
        if len(body) != _HEADER.size + metadata_size + cubin_size + ptx_size:
            raise DamagedArtifactError("the sizes in the header do not add up")
        cubin_at = _HEADER.size + metadata_size
        try:
            fields = json.loads(body[_HEADER.size : cubin_at])
            metadata = ArtifactMetadata(**{**fields, "param_sizes": tuple(fields["param_sizes"])})
            ptx = body[cubin_at + cubin_size :].decode()
        except (ValueError, TypeError, KeyError) as error:
            raise DamagedArtifactError(f"not what this version writes: {error}") from error
        return cls(body[cubin_at : cubin_at + cubin_size], ptx, metadata)

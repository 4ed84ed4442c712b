"""Opens sealed boxes as docs/privacy.md says them, apart from the code that closes them and the code that opens them."""

from __future__ import annotations

from uuid import UUID

import msgspec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from berth_gateway.contract import RecordContent, SealedRecord


def opened(record: SealedRecord, private: X25519PrivateKey) -> RecordContent:
    box = record.box
    assert box[0] == 1 and UUID(bytes=box[1:17]) == UUID(record.sealing_key_id)
    shared = private.exchange(X25519PublicKey.from_public_bytes(box[17:49]))
    salt = box[17:49] + private.public_key().public_bytes_raw()
    made = HKDF(SHA256(), 44, salt=salt, info=b"berth sealed box v1").derive(shared)
    context = record.event_id.encode() + b"\0" + record.org_id.encode()
    plain = AESGCM(made[:32]).decrypt(made[32:], box[49:], box[:49] + context)
    return msgspec.msgpack.decode(plain, type=RecordContent)

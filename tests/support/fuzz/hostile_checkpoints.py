"""Checkpoints made by hand that ask for harm: memory, time, calls, and what is not in the file."""

from __future__ import annotations

import io
import pickle
import zipfile
from typing import Any

import torch


def archive(pickled: bytes, records: dict[str, bytes] | None = None, **options: Any) -> bytes:
    """A checkpoint of a pickle and records made by hand."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", **options) as file:
        for name, content in {"data.pkl": pickled, "version": b"3\n", **(records or {})}.items():
            file.writestr(f"archive/{name}", content)
    return out.getvalue()


def legacy(pickled: bytes) -> bytes:
    out = io.BytesIO()
    torch.save({"x": torch.ones(1)}, out, _use_new_zipfile_serialization=False)
    head = out.getvalue()
    at = head.index(b"\x80", head.index(b"\x80", head.index(b"\x80", 1) + 1) + 1)  # behind three pickles
    return head[:at] + pickled + pickle.dumps([], protocol=2)


def tensor(size: bytes, *, numel: bytes = b"K\x04", stride: bytes = b"K\x01") -> bytes:
    """{'w': a float tensor of one dimension}; the numbers are pickled integers."""
    storage = b"(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\0" + b"0X\x03\0\0\0cpu" + numel + b"tQ"
    view = b"K\x00(" + size + b"t(" + stride + b"t\x89ccollections\nOrderedDict\n)R"
    return b"\x80\x02}X\x01\0\0\0wctorch._utils\n_rebuild_tensor_v2\n(" + storage + view + b"tRs."


def long(number: int) -> bytes:
    return b"\x8a\x08" + number.to_bytes(8, "little")


DEEP = 50_000
STORED = {"data/0": bytes(16)}
HARM: dict[str, bytes] = {
    "10^12 elements of four": archive(tensor(long(10**12)), STORED),
    "a storage of 10^12": archive(tensor(long(10**12), numel=long(10**12)), STORED),
    "a storage of five": archive(tensor(b"K\x05", numel=b"K\x05"), STORED),
    "a storage that is not there": archive(tensor(b"K\x04")),
    "10^12 times the same": archive(tensor(long(10**12), stride=b"K\x00"), STORED),
    "a negative size": archive(tensor(b"J\xff\xff\xff\xff"), STORED),
    "a size beyond 64 bits": archive(tensor(b"\x8a\x09" + bytes(8) + b"\x01"), STORED),
    "a long bytearray": archive(b"\x80\x02c__builtin__\nbytearray\n" + long(10**13) + b"\x85R."),
    "a long tensor": archive(b"\x80\x02ctorch\nFloatTensor\n" + long(10**11) + b"\x85R."),
    "hex of hex of hex": archive(
        b"\x80\x02X\x02\0\0\0aa" + b"q\0c_codecs\nencode\nh\0X\x03\0\0\0hex\x86Rq\0" * 60 + b"."
    ),
    "bytes again and again": archive(
        b"\x80\x02X" + (10**5).to_bytes(4, "little") + b"a" * 10**5 + b"q\0X\x06\0\0\0latin1q\1"
        b"c_codecs\nencode\nq\2" + b"h\2h\0h\1\x86R" * 10**4 + b"."
    ),
    "a set again and again": archive(
        b"\x80\x02](" + b"".join(b"J" + n.to_bytes(4, "little") for n in range(10**4)) + b"eq\0"
        b"c__builtin__\nset\nq\1" + b"h\1h\0\x85R" * 10**4 + b"."
    ),
    "a key of many levels": archive(b"\x80\x02})" + b"\x85" * DEEP + b"K\0s."),
    "values of many levels": archive(b"\x80\x02" + b"]" * DEEP + b"a" * (DEEP - 1) + b"."),
    "a dict in itself": archive(b"\x80\x02}q\0X\x05\0\0\0modelh\0s."),
    "a dict in itself under every name": archive(
        b"\x80\x02}q\0"
        + b"".join(
            b"X" + len(name).to_bytes(4, "little") + name.encode() + b"h\0s"
            for name in ["ema", "model_ema", "model", "state_dict", "net", "network", "module", "weights"]
        )
        + b"."
    ),
    "a list in itself": archive(b"\x80\x02]q\0h\0a."),
    "a memo far away": archive(b"\x80\x02}r\xff\xff\xff\xff."),
    "nothing on the stack": archive(b"\x80\x020."),
    "marks": archive(b"\x80\x02" + b"(" * DEEP + b"t."),
    "calls of what is not called": archive(b"\x80\x02K\1)R."),
    "attributes that hide methods": archive(
        b"\x80\x02ccollections\nOrderedDict\n)R}X\x05\0\0\0itemsK\0sb."
    ),
    "a compressed archive": archive(b"\x80\x02}.", {"data/0": bytes(10**7)}, compression=8),
    "a legacy storage of 10^12": legacy(tensor(long(10**12), numel=long(10**12))),
    "escape sequences": archive(b"\x80\x02c\x1b[31mos\nsy\x07stem\n)R."),
}  # fmt: skip

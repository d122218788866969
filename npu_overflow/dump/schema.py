"""The protobuf messages of a dump (proto3, package toolkit.dumpdata), built at run time in a
private pool.

The vendor's packages register the same names in the default pool, and generated modules don't work
across the releases 3.9 to 7 of protobuf that supported TensorFlow versions pin. Strings are
declared as bytes and enums as int32: the same on the wire, but a name in another encoding doesn't
make a whole file unreadable. Fields that nobody here reads (dim_range) are left to the unknown
ones.
"""
from __future__ import annotations

from typing import Any, Dict, List, Tuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

__all__ = ["HOST_FIELD", "MESSAGES", "DumpData", "parse"]

#: field of DumpData that carries the host collector's JSON; every other parser skips it
HOST_FIELD = 15000

_PACKAGE = "toolkit.dumpdata"
# message -> fields (name, number, type, repeated); a type with a capital is a message
MESSAGES: Dict[str, List[Tuple[str, int, str, bool]]] = {
    "Shape": [("dim", 1, "uint64", True)],
    "OriginalOp": [
        ("name", 1, "bytes", False),
        ("output_index", 2, "uint32", False),
        ("data_type", 3, "int32", False),
        ("format", 4, "int32", False),
    ],
    "OpOutput": [
        ("data_type", 1, "int32", False),
        ("format", 2, "int32", False),
        ("shape", 3, "Shape", False),
        ("original_op", 4, "OriginalOp", False),
        ("data", 5, "bytes", False),
        ("size", 6, "uint64", False),
        ("original_shape", 7, "Shape", False),
        ("sub_format", 8, "int32", False),
        ("address", 9, "uint64", False),
        ("offset", 11, "uint64", False),
    ],
    "OpInput": [
        ("data_type", 1, "int32", False),
        ("format", 2, "int32", False),
        ("shape", 3, "Shape", False),
        ("data", 4, "bytes", False),
        ("size", 5, "uint64", False),
        ("original_shape", 6, "Shape", False),
        ("sub_format", 7, "int32", False),
        ("address", 8, "uint64", False),
        ("offset", 9, "uint64", False),
        ("arg_index", 10, "uint32", False),
        ("input_type", 11, "uint32", False),
    ],
    "OpBuffer": [
        ("buffer_type", 1, "int32", False),
        ("data", 2, "bytes", False),
        ("size", 3, "uint64", False),
    ],
    "Workspace": [
        ("type", 1, "int32", False),
        ("data", 2, "bytes", False),
        ("size", 3, "uint64", False),
    ],
    "OpAttr": [("name", 1, "bytes", False), ("value", 2, "bytes", False)],
    "DumpData": [
        ("version", 1, "bytes", False),
        ("dump_time", 2, "uint64", False),
        ("output", 3, "OpOutput", True),
        ("input", 4, "OpInput", True),
        ("buffer", 5, "OpBuffer", True),
        ("op_name", 6, "bytes", False),
        ("attr", 7, "OpAttr", True),
        ("space", 8, "Workspace", True),
        ("dfx_message", 9, "bytes", False),
        ("host", HOST_FIELD, "bytes", False),
    ],
}


def _build() -> Tuple[Any, Dict[str, Any]]:
    """The pool and the classes of all messages."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="npu_overflow_dump.proto", package=_PACKAGE, syntax="proto3"
    )
    for message, fields in MESSAGES.items():
        described = file.message_type.add(name=message)
        for name, number, kind, repeated in fields:
            one = described.field.add(name=name, number=number)
            one.label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
            if kind[0].isupper():
                one.type = kinds.TYPE_MESSAGE
                one.type_name = ".%s.%s" % (_PACKAGE, kind)
            else:
                one.type = getattr(kinds, "TYPE_" + kind.upper())
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    # 3.x has only the factory's method, 7 only the function
    made = (
        message_factory.GetMessageClass
        if hasattr(message_factory, "GetMessageClass")
        else message_factory.MessageFactory(pool).GetPrototype
    )
    return pool, {
        message: made(pool.FindMessageTypeByName("%s.%s" % (_PACKAGE, message)))
        for message in MESSAGES
    }


# every class and the pool are kept: 4.x crashes on a message whose class was garbage collected
_POOL, _CLASSES = _build()
DumpData: Any = _CLASSES["DumpData"]


def parse(header: bytes) -> Any:
    """A DumpData from its bytes.

    Raises:
        ValueError: these bytes are no such message.
    """
    message = DumpData()
    try:
        message.ParseFromString(header)
    # DecodeError, and what the pure-Python parser lets through on hostile bytes
    except Exception as error:
        raise ValueError(str(error)) from error
    return message

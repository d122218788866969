"""Numbers of the dump format and their names, as data."""
from __future__ import annotations

from typing import Dict, FrozenSet, Iterable, Optional

__all__ = [
    "COMPLEX",
    "DATA_TYPES",
    "DATA_TYPE_NUMBERS",
    "DECODED",
    "FLOATS",
    "FORMATS",
    "FORMAT_NUMBERS",
    "ITEM_BITS",
    "MAX",
    "STORAGE",
    "UNDECODED",
    "bytes_needed",
    "could_overflow",
    "data_type_name",
    "elements",
    "format_name",
]

DATA_TYPES: Dict[int, str] = dict(
    enumerate(
        "undefined float32 float16 int8 uint8 int16 uint16 int32 int64 uint32 uint64 bool "
        "float64 string dual_sub_int8 dual_sub_uint8 complex64 complex128 qint8 qint16 "
        "qint32 quint8 quint16 resource string_ref dual variant bfloat16 int4 uint1 int2 "
        "uint2 complex32 hifloat8 float8_e5m2 float8_e4m3fn float8_e8m0 float6_e3m2 "
        "float6_e2m3 float4_e2m1 float4_e1m2".split()
    )
)
DATA_TYPE_NUMBERS: Dict[str, int] = {name: number for number, name in DATA_TYPES.items()}

FORMATS: Dict[int, str] = dict(
    enumerate(
        "NCHW NHWC ND NC1HWC0 FRACTAL_Z NC1C0HWPAD NHWC1C0 FSR_NCHW FRACTAL_DECONV C1HWNC0 "
        "FRACTAL_DECONV_TRANSPOSE FRACTAL_DECONV_SP_STRIDE_TRANS NC1HWC0_C04 FRACTAL_Z_C04 "
        "CHWN FRACTAL_DECONV_SP_STRIDE8_TRANS HWCN NC1KHKWHWC0 BN_WEIGHT FILTER_HWCK "
        "HASHTABLE_LOOKUP_LOOKUPS HASHTABLE_LOOKUP_KEYS HASHTABLE_LOOKUP_VALUE "
        "HASHTABLE_LOOKUP_OUTPUT HASHTABLE_LOOKUP_HITS C1HWNCoC0 MD NDHWC FRACTAL_ZZ "
        "FRACTAL_NZ NCDHW DHWCN NDC1HWC0 FRACTAL_Z_3D CN NC DHWNC FRACTAL_Z_3D_TRANSPOSE "
        "FRACTAL_ZN_LSTM FRACTAL_Z_G RESERVED ALL NULL ND_RNN_BIAS FRACTAL_ZN_RNN YUV "
        "YUV_A NCL FRACTAL_Z_WINO C1HWC0".split()
    )
)
FORMATS[255] = "MAX"
FORMAT_NUMBERS: Dict[str, int] = {name: number for number, name in FORMATS.items()}

#: numpy type of the items in the file, little endian; of complex types that of one part
STORAGE: Dict[str, str] = {
    "float32": "<f4", "float16": "<f2", "float64": "<f8", "bfloat16": "<u2",
    "hifloat8": "|u1", "float8_e5m2": "|u1", "float8_e4m3fn": "|u1", "float8_e8m0": "|u1",
    "complex32": "<f2", "complex64": "<f4", "complex128": "<f8",
    "int8": "|i1", "int16": "<i2", "int32": "<i4", "int64": "<i8", "uint8": "|u1", "uint16": "<u2",
    "uint32": "<u4", "uint64": "<u8", "bool": "|u1",
    "qint8": "|i1", "qint16": "<i2", "qint32": "<i4", "quint8": "|u1", "quint16": "<u2",
    "dual_sub_int8": "|i1", "dual_sub_uint8": "|u1",
}  # fmt: skip
DECODED: FrozenSet[str] = frozenset(STORAGE)
UNDECODED: FrozenSet[str] = frozenset(DATA_TYPE_NUMBERS) - DECODED
COMPLEX: FrozenSet[str] = frozenset({"complex32", "complex64", "complex128"})

#: largest finite value of each float type, exactly, as a Python float
MAX: Dict[str, float] = {
    "float16": 65504.0,
    "bfloat16": (2.0 - 2.0**-7) * 2.0**127,
    "float32": (2.0 - 2.0**-23) * 2.0**127,
    "float64": (2.0 - 2.0**-52) * 2.0**1023,
    "hifloat8": 32768.0,
    "float8_e5m2": 57344.0,
    "float8_e4m3fn": 448.0,
    "float8_e8m0": 2.0**127,
    "complex32": 65504.0,
    "complex64": (2.0 - 2.0**-23) * 2.0**127,
    "complex128": (2.0 - 2.0**-52) * 2.0**1023,
}
#: types whose elements can be an overflow value and are decoded
FLOATS: FrozenSet[str] = frozenset(MAX)

_HARMLESS = frozenset({"string", "string_ref", "int4", "uint1", "int2", "uint2"}) | (
    DECODED - FLOATS
)

#: bits an element takes, for every type whose elements have one size
ITEM_BITS: Dict[str, int] = {
    name: 8 * int(storage[2:]) * (2 if name in COMPLEX else 1) for name, storage in STORAGE.items()
}
ITEM_BITS.update(
    {
        "int4": 4,
        "uint1": 1,
        "int2": 2,
        "uint2": 2,
        "float6_e3m2": 6,
        "float6_e2m3": 6,
        "float4_e2m1": 4,
        "float4_e1m2": 4,
    },
)


def data_type_name(number: int) -> str:
    """The type's name, or "type N" where it is unknown."""
    return DATA_TYPES.get(number, "type %d" % number)


def format_name(number: int) -> str:
    """The format's name, or the number as text where it is unknown."""
    return FORMATS.get(number, str(number))


def could_overflow(dtype: str) -> bool:
    """Whether an element of this type could be an overflow value; True for types that are not known
    well enough to say no."""
    return dtype not in _HARMLESS


def elements(shape: Iterable[int]) -> int:
    """Elements of a shape, exactly, however large."""
    result = 1
    for size in shape:
        result *= size
    return result


def bytes_needed(dtype: str, count: int) -> Optional[int]:
    """Bytes that ``count`` elements take, or None where a type has no fixed size."""
    bits = ITEM_BITS.get(dtype)
    return None if bits is None else (bits * count + 7) // 8

"""Changes that keep a file's form: JSON stays JSON, a header stays a protobuf message, so that what is behind the parser is reached."""
from __future__ import annotations

import json
import random
import struct
from typing import Any, List, Tuple

from npu_overflow.dump import schema
from npu_overflow.dump.record import CONTENT_BYTES, MAGIC

#: numbers where things turn over
NUMBERS = (
    *(0, 1, -1, 2, 3, 7, 15, 16, 31, 32, 40, 64, 127, 128, 255, 256, 4095, 65504, 65535, 65536),
    *(2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1),
)
FLOATS = (0.0, -0.0, 0.5, 1e308, -1e308, 5e-324, 1e22, 65504.0, float("inf"), float("-inf"), float("nan"))
#: texts that mean something to somebody: a terminal, a browser, a shell, a path, a format string, the report's own JSON
TEXTS = (
    *("", " ", ".", "..", "../../../../etc/passwd", "/etc/passwd", "a/b", "a\\b", "C:\\x", "~", "-rf", "--help", "\0", "a\0b", "\n", "a\nb", "\r\n", "\t"),
    *("\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "\x9b31m", "[red]x[/red]", "[/]", "[link=http://example.com]x[/link]"),
    *("<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "&lt;", "'\"`", "{}", "{0}", "{x}", "{x.__class__}", "{x!r:>1000000}", "%s", "%n", "%(a)s"),
    *("$(id)", "`id`", "inf", "-inf", "nan", "\\inf", "null", "true", "1e999", "\u202eevil", "\u200b", "\u2028", "\ufeff", "\ud800", "\udcff"),
    *("\U0001f600", "\U0010ffff", "e\u0301", "名字", "_code", "code", "language", "self", "a" * 300, "长" * 100, "x" * 5000, "a.b.1.2.3", "GatherV2"),
)
VALUES: Tuple[Any, ...] = (None, True, False, [], {}, [[]], [None], {"": None}, {"a": {"a": {"a": []}}}) + NUMBERS + FLOATS + TEXTS


def deep(rng: random.Random) -> Any:
    """A value in many lists or objects."""
    value: Any = 1
    for _ in range(rng.choice((1, 2, 5, 12, 31, 60, 150, 300, 400))):  # json of Python 3.7 can write no more than a thousand
        value = [value] if rng.random() < 0.5 else {rng.choice(("a", "name", "value", "")): value}
    return value


# -- JSON


def change_json(value: Any, rng: random.Random, times: int = 1) -> Any:
    """A JSON value with some places of it changed."""
    for _ in range(times):
        holder = [value]
        places = list(_places(holder))
        _change(*rng.choice(places), rng)
        value = holder[0]
    return value


def _places(value: Any, depth: int = 0) -> Any:
    if depth > 200:
        return
    for key, item in list(value.items()) if isinstance(value, dict) else list(enumerate(value)):
        yield value, key
        if isinstance(item, (dict, list)):
            yield from _places(item, depth + 1)


def _change(holder: Any, key: Any, rng: random.Random) -> None:
    item = holder[key]
    chosen = rng.randrange(8)
    if chosen == 0 and isinstance(holder, dict):
        holder[rng.choice(list(holder) + list(TEXTS))] = holder.pop(key)
    elif chosen == 1 and len(holder) > 0:
        del holder[key]
        if isinstance(holder, list) and not holder:
            holder.append(item)
    elif chosen == 2:
        holder[key] = [item] if rng.random() < 0.5 else {"value": item}
    elif chosen == 3 and isinstance(item, list) and item:
        holder[key] = item * rng.choice((2, 3, 50))
    elif chosen == 4:
        holder[key] = deep(rng)
    elif chosen == 5 and isinstance(item, (int, float)) and not isinstance(item, bool):
        holder[key] = rng.choice((item + 1, item - 1, -item, item * 2, float(item) if abs(item) < 1e300 else 0, str(item)))
    elif chosen == 6 and isinstance(item, str):
        at = rng.randrange(len(item) + 1)
        holder[key] = item[:at] + rng.choice(TEXTS) + item[at:]
    elif chosen == 7 and isinstance(item, dict):
        item[rng.choice(TEXTS)] = rng.choice(VALUES)
    else:
        holder[key] = rng.choice(VALUES)


def json_bytes(value: Any, rng: random.Random) -> bytes:
    """``value`` as a file, in one of the ways that writers have."""
    return json.dumps(value, ensure_ascii=rng.random() < 0.5, indent=rng.choice((None, 1))).encode("utf-8", "surrogatepass")


def change_json_bytes(data: bytes, rng: random.Random, times: int = 1) -> bytes:
    """A JSON file changed in its structure; of anything else its bytes."""
    try:
        value = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        return change_bytes(data, rng)
    return json_bytes(change_json(value, rng, times), rng)


# -- dumps and records


def change_dump(data: bytes, rng: random.Random) -> bytes:
    """A dump file with a field of its header changed, and the length in front of it made right."""
    length = int.from_bytes(data[:8], "little")
    try:
        message = schema.parse(data[8 : 8 + length])
    except ValueError:
        return change_bytes(data, rng)
    body = data[8 + length :]
    chosen = rng.randrange(8)
    if chosen == 0 and body:
        body = change_record(body, rng) if len(body) == CONTENT_BYTES else change_bytes(body, rng)
    elif chosen == 1 and message.host:
        message.host = change_json_bytes(message.host, rng)
    elif chosen == 2 and message.attr:
        message.attr[0].value = change_json_bytes(message.attr[0].value, rng)
    elif chosen == 3:
        message.op_name = rng.choice(TEXTS).encode("utf-8", "surrogatepass") + rng.choice((b"", b"\xff\xfe", message.op_name))
    else:
        _change_header(message, rng)
    header = message.SerializeToString()
    return struct.pack("<Q", len(header)) + header + body


def _change_header(message: Any, rng: random.Random) -> None:
    sides = [side for side in (message.input, message.output) if len(side)]
    if not sides:
        message.output.add(data_type=rng.choice((0, 1, 2, 27, 34)), size=rng.choice((0, 4, 32, 2**40)))
        return
    side = rng.choice(sides)
    item = rng.choice(list(side))
    chosen = rng.randrange(9)
    if chosen == 0:
        item.data_type = rng.choice((*range(0, 42), -1, 99, 2**31 - 1))
    elif chosen == 1:
        item.format = rng.choice((*range(0, 50), 255, -1, 2**31 - 1))
    elif chosen == 2:
        item.size = rng.choice((item.size + 1, max(0, item.size - 1), item.size * 2 % 2**64, *(number % 2**64 for number in NUMBERS)))
    elif chosen in (3, 4, 5):
        shape = item.shape if chosen != 4 else item.original_shape
        _change_shape(shape, rng)
    elif chosen == 6:
        item.sub_format = rng.choice((0, 1, 2, 2**31 - 1, -1))
        item.address = rng.choice((0, 1, 2**64 - 1))
    elif chosen == 7:
        side.add().CopyFrom(item)
    else:
        del side[rng.randrange(len(side))]


def _change_shape(shape: Any, rng: random.Random) -> None:
    chosen = rng.randrange(4)
    if chosen == 0 or not len(shape.dim):
        shape.dim.append(rng.choice((0, 1, 2, 16, 2**63, 2**64 - 1)))
    elif chosen == 1:
        del shape.dim[rng.randrange(len(shape.dim))]
    elif chosen == 2:
        shape.dim[rng.randrange(len(shape.dim))] = rng.choice([number % 2**64 for number in NUMBERS])
    else:
        order = list(shape.dim)
        rng.shuffle(order)
        del shape.dim[:]
        shape.dim.extend(order)


def change_record(content: bytes, rng: random.Random) -> bytes:
    """The content of a record with one of its words changed."""
    changed = bytearray(content)
    if struct.unpack_from("<I", content)[0] == MAGIC and rng.random() < 0.5:
        struct.pack_into("<I", changed, 4 * rng.randrange(6), rng.choice(NUMBERS) % 2**32)
    else:
        start = 24 if struct.unpack_from("<I", content)[0] == MAGIC else 0
        places: List[int] = list(range(start, start + 160, 8)) + list(range(0, len(content) - 8, 128)) + [1024, 1032, 1040]
        struct.pack_into("<Q", changed, rng.choice(places), rng.choice(NUMBERS) % 2**64)
    return bytes(changed)


# -- bytes


def change_bytes(data: bytes, rng: random.Random) -> bytes:
    """Any bytes: flipped, cut, doubled, moved, overwritten with numbers at limits."""
    changed = bytearray(data)
    chosen = rng.randrange(8)
    at = rng.randrange(len(changed) + 1)
    if not changed or chosen == 0:
        changed[at:at] = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 9)))
    elif chosen == 1:
        del changed[at:]
    elif chosen == 2:
        del changed[at : at + rng.choice((1, 4, 8, 100))]
    elif chosen == 3:
        size = rng.choice((1, 2, 4, 8))
        number = (rng.choice(NUMBERS) % 2 ** (8 * size)).to_bytes(size, "little")
        changed[at : at + size] = number
    elif chosen == 4:
        piece = changed[at : at + rng.randrange(1, 200)]
        to = rng.randrange(len(changed) + 1)
        changed[to:to] = piece
    elif chosen == 5:
        changed[at:at] = rng.choice(TEXTS).encode("utf-8", "surrogatepass")
    else:
        for _ in range(rng.choice((1, 1, 1, 2, 8))):
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)

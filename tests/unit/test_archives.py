"""Claims about the standard archives: every form gives the same images, and no file is run."""

import gzip
import io
import os
import pickle
import struct
import tarfile
import tracemalloc
import zlib
from contextlib import contextmanager
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from codauc.data import archives, pickle_reader, standard_images
from codauc.data.binary_labels import binarise
from codauc.data.pickle_reader import unpickled
from codauc.data.standard_images import cifar10, cifar100, fashion_mnist, fashion_tiny, mnist

BATCHES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
SETS = {10: (cifar10, BATCHES, "cifar-10-batches-"), 100: (cifar100, ["train", "test"], None)}
many = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def python_2(value):
    """The steps by which Python 2 writes a value at protocol 2, without memo."""
    match value:
        case None:
            return MADE
        case bytes():
            size = len(value)
            return (b"U%c" % size if size < 256 else b"T" + struct.pack("<i", size)) + value
        case int():
            return b"K%c" % value if value < 256 else b"J" + struct.pack("<i", value)
        case list():
            return b"](" + b"".join(map(python_2, value)) + b"e"
        case dict():
            pairs = (python_2(key) + python_2(item) for key, item in value.items())
            return b"}q\x01(" + b"".join(pairs) + b"u"
    rows, columns = map(python_2, value.shape)
    return (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x02cnumpy\nndarray\nq\x03K\x00\x85U\x01b\x87Rq\x04"
        b"(K\x01"
        + rows
        + columns
        + b"\x86cnumpy\ndtype\nq\x05U\x02u1K\x00K\x01\x87Rq\x06(K\x03U\x01|NNN"
        b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89" + python_2(value.tobytes()) + b"tb"
    )


def as_python_2(batch):
    return b"\x80\x02" + python_2(batch) + b"."


def batches(classes, seed=0):
    """The files of a small CIFAR by name, as dicts of the python form."""
    rng, found = np.random.default_rng(seed), {}
    for name in SETS[classes][1]:
        count = int(rng.integers(1, 4))
        labels = rng.integers(0, classes, count).tolist()
        found[name] = {
            b"data": rng.integers(0, 256, (count, 3072), np.uint8),
            b"filenames": [b"image_%d.png" % i for i in range(count)],
        }
        if classes == 10:
            found[name][b"labels"] = labels
        else:
            found[name] |= {b"fine_labels": labels, b"coarse_labels": [n // 5 for n in labels]}
    return found


def binary(batch):
    """A batch of the python form as records of the binary form."""
    heads = [batch[key] for key in (b"labels", b"coarse_labels", b"fine_labels") if key in batch]
    return np.concatenate([np.array(heads, np.uint8).T, batch[b"data"]], axis=1).tobytes()


def files(classes, form, seed=0):
    """The files of a small CIFAR as bytes, by their names in the archive."""
    folder = (SETS[classes][2] or "cifar-100-") + (form[:3] if classes == 10 else form)
    if classes == 10 and form == "python":
        folder = "cifar-10-batches-py"
    end, encode = (".bin", binary) if form == "binary" else ("", as_python_2)
    return {f"{folder}/{n}{end}": encode(batch) for n, batch in batches(classes, seed).items()}


def lay(root, contents):
    for name, data in contents.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def tar(path, contents, mode="w:gz"):
    with tarfile.open(path, mode) as archive:
        for name, data in {"./readme.html": b"", **contents}.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def same(first, second):
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(first, second, strict=True))


def expected(classes):
    """The images of a small CIFAR, scaled by numpy."""
    *train, test = batches(classes).values()
    key = b"labels" if classes == 10 else b"fine_labels"
    x = np.concatenate([batch[b"data"] for batch in train]).reshape(-1, 3, 32, 32)
    mean, std = x.mean((0, 2, 3), keepdims=True), x.std((0, 2, 3), keepdims=True)
    scaled = [
        torch.from_numpy((pixels.reshape(-1, 3, 32, 32) - mean) / std).float()
        for pixels in (x, test[b"data"])
    ]
    return scaled[0], [label for batch in train for label in batch[key]], scaled[1], test[key]


@pytest.fixture(params=[(c, f) for c in SETS for f in ("binary", "python")], ids=str)
def small(request):
    """One of the four standard archives: its reader, its files, and the name of its tar file."""
    classes, form = request.param
    return SETS[classes][0], files(classes, form), f"cifar-{classes}-{form}.tar.gz", classes


def test_every_form_and_place_gives_the_same_images(small, tmp_path):
    read, contents, tarball, classes = small
    found = read(lay(tmp_path / "unpacked", contents))
    train_x, train_y, test_x, test_y = expected(classes)
    assert (found.train_y.tolist(), found.test_y.tolist()) == (train_y, test_y)
    torch.testing.assert_close(found.train_x, train_x)
    torch.testing.assert_close(found.test_x, test_x)
    folder = next(iter(contents)).split("/")[0]
    flat = {name.split("/")[1]: data for name, data in contents.items()}
    (tmp_path / "plain").mkdir()
    places = [
        tmp_path / "unpacked" / folder,
        tar(tmp_path / tarball, contents),
        str(tmp_path),
        tar(tmp_path / "renamed", dict(reversed(contents.items())), "w:"),
        tar(tmp_path / "flat.tar.gz", flat),
        tar(tmp_path / "plain" / tarball.removesuffix(".gz"), contents, "w:").parent,
    ]
    assert all(same(read(place), found) for place in places)


@pytest.mark.parametrize("classes", SETS)
def test_binary_and_python_form_give_identical_tensors(classes, tmp_path):
    read = SETS[classes][0]
    first, second = (
        read(lay(tmp_path / form, files(classes, form))) for form in ("binary", "python")
    )
    assert same(first, second)


def test_nothing_is_unpacked_to_the_disk(small, tmp_path, monkeypatch):
    read, contents, tarball, _ = small
    monkeypatch.chdir(tmp_path)
    read(tar(tmp_path / tarball, contents))
    assert [path.name for path in tmp_path.rglob("*")] == [tarball]


@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_in_either_order_are_read(order):
    values = np.arange(6, dtype=np.uint8).reshape(2, 3)
    written = as_python_2({b"x": values}).replace(values.tobytes(), values.tobytes(order))
    if order == "F":
        written = written.replace(b"tb\x89", b"tb\x88")
    assert unpickled("file", written, "again")["x"].tolist() == values.tolist()


class Runs:
    """Pickled as a call that leaves a file behind."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


ENCODE = b"c_codecs\nencode\n"
MADE = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
MINUS_1 = b"J\xff\xff\xff\xff"
KIND = b"cnumpy\ndtype\nU\x02%sK\x00K\x01\x87R(K\x03U\x01|NNN" + 2 * MINUS_1 + b"K\x00tb"
BYTES = KIND % b"u1"
SYSTEM = b"cos\nsystem\n"
TOUCH = b"U\x0ctouch marker"


def attack(body):
    return b"\x80\x02}U\x04data" + body + b"s."


ATTACKS = {
    "os.system": (attack(SYSTEM + TOUCH + b"\x85R"), "asks for 'os system'"),
    "name in parts": (
        attack(b"\x8c\x02os\x94\x8c\x06system\x94\x93" + TOUCH + b"\x85R"),
        "step SHORT_BINUNICODE",
    ),
    "names from memo": (attack(b"U\x06systemq\x000U\x02osq\x01h\x01h\x00\x93"), "step POP"),
    "eval": (attack(b"cbuiltins\neval\n" + TOUCH + b"\x85R"), "asks for 'builtins eval'"),
    "dotted name": (attack(b"cnumpy\ndtype.__class__\n"), "dtype.__class__"),
    "numpy attribute": (attack(b"cnumpy.core.multiarray\nfromfile\n"), "fromfile"),
    "numpy's f2py": (attack(b"cnumpy.testing._private.utils\nrunstring\n"), "runstring"),
    "bytes as names": (attack(b"U\x05numpyU\x07ndarray\x93"), "step STACK_GLOBAL"),
    "INST": (attack(b"(" + TOUCH + b"ios\nsystem\n"), "step INST"),
    "OBJ": (attack(b"(cnumpy\nndarray\n" + TOUCH + b"o"), "step OBJ"),
    "NEWOBJ": (attack(b"cnumpy\nndarray\n)\x81"), "step NEWOBJ"),
    "NEWOBJ_EX": (attack(b"cnumpy\nndarray\n)}\x92"), "step NEWOBJ_EX"),
    "EXT1": (attack(b"\x82\x01"), "step EXT1"),
    "PERSID": (attack(b"Ptouch\n"), "step PERSID"),
    "BINPERSID": (attack(TOUCH + b"Q"), "step BINPERSID"),
    "NEXT_BUFFER": (attack(b"\x97"), "step NEXT_BUFFER"),
    "unknown step": (attack(b"\xff"), "step '\xff'"),
    "a call of text": (attack(b"U\x02os)R"), "calls a str"),
    "ndarray()": (attack(b"cnumpy\nndarray\n)R"), "calls numpy ndarray in an unknown way"),
    "a call with a list": (attack(b"cnumpy\nndarray\n]R"), "calls numpy ndarray in an unknown way"),
    "bytes(10**9)": (attack(b"c__builtin__\nbytes\nJ\x00\x00\x00\x10\x85R"), "asks for '__b"),
    "encode with rot13": (attack(b"c_codecs\nencode\n"), "asks for '_codecs encode'"),
    "BUILD a dict": (attack(b"}}b"), "builds a dict"),
    "BUILD from a dict": (attack(MADE + b"}b"), "builds a _Array in an unknown way"),
    "BUILD a name": (attack(b"cnumpy\ndtype\n}b"), "builds a _Name"),
    "array of objects": (
        attack(MADE + b"(K\x01K\x01\x85" + KIND % b"O8" + b"\x89U\x0812345678tb"),
        "calls numpy dtype in an unknown way",
    ),
    "array beyond its bytes": (
        attack(MADE + b"(K\x01J\xff\xff\xff\x7fK\x01\x86" + BYTES + b"\x89U\x011tb"),
        "in 1 bytes",
    ),
    "array of negative size": (
        attack(MADE + b"(K\x01" + MINUS_1 + b"K\x01\x86" + BYTES + b"\x89U\x011tb"),
        "array of -1 x 1 in 1 bytes",
    ),
    "array of one dimension": (
        attack(MADE + b"(K\x01K\x01\x85" + BYTES + b"\x89U\x01atb"),
        "builds a _Array in an unknown way",
    ),
    "tuples as keys": (b"})Ns.", "not all texts"),
    "a list": (b"].", "holds a list"),
    "append to text": (b"U\x01aNa.", "do not fit each other"),
    "no mark": (b"e.", "do not fit each other"),
    "below the mark": (b"](Na.", "holds a list"),
    "no value": (b".", "do not fit each other"),
    "no memo": (b"h\x07.", "do not fit each other"),
    "no end": (b"}", "ends too early"),
    "a length beyond the file": (b"T\xff\xff\xff\x7fab", "expected 2147483647 bytes"),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_a_pickle_that_is_not_plain_data_is_refused_by_name(name, tmp_path, monkeypatch):
    data, reason = ATTACKS[name]
    monkeypatch.chdir(tmp_path)
    contents = {**files(10, "python"), "cifar-10-batches-py/data_batch_3": data}
    message = rf"data_batch_3 .*{reason}.*nothing in the file was run: get the original"
    with pytest.raises(ValueError, match=message):
        cifar10(lay(tmp_path, contents))
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("packed", [False, True])
def test_a_malicious_pickle_leaves_no_mark(protocol, packed, tmp_path):
    marker = tmp_path / "marker"
    calls = [
        Runs(os.system, f"touch {marker}"),
        Runs(eval, f"open({str(marker)!r}, 'w')"),
        Runs(open, str(marker), "w"),
    ]
    for call in calls:
        batch = {**batches(10)["data_batch_1"], b"labels": call}
        contents = {**files(10, "python")}
        contents["cifar-10-batches-py/data_batch_1"] = pickle.dumps(batch, protocol)
        path = tar(tmp_path / "a.tar.gz", contents) if packed else lay(tmp_path / "a", contents)
        with pytest.raises(
            ValueError, match=r"data_batch_1 cannot be read .*nothing in the file was run"
        ):
            cifar10(path)
    assert not marker.exists()


MEANS = ("INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID")


def test_no_step_can_make_an_instance_and_no_name_is_more_than_a_text():
    assert not set(MEANS) & set(pickle_reader._STEPS)
    machine = pickle_reader._Machine()
    for name in pickle_reader._NAMES:
        machine.name(name)
        assert isinstance(machine.stack[-1], str)
        assert not callable(machine.stack[-1])


def test_every_step_after_every_known_name_gives_nothing_but_value_errors():
    """All 256 letters, with the name alone and with arguments of several kinds."""
    after = (b"", b")", b"}", b"]", TOUCH + b"\x85", b"N}\x86", b"}" + TOUCH + b"Ns")
    for name, step, more in product(pickle_reader._NAMES, range(256), after):
        body = b"(c%s\n" % name.encode().replace(b" ", b"\n") + more + bytes([step])
        only_value_errors(unpickled, "file", attack(body + bytes(8)), "again")
        only_value_errors(unpickled, "file", attack(body[1:]), "again")


def test_small_files_cannot_fill_the_memory(monkeypatch):
    monkeypatch.setattr(pickle_reader, "_MOST_STEPS", 1000)
    with pytest.raises(ValueError, match="more than 1000 steps"):
        unpickled("file", b"]" * 2000, "again")
    monkeypatch.setattr(archives, "_MOST_BYTES", 1000)
    for opened in (
        io.BytesIO(bytes(2000)),
        gzip.GzipFile(fileobj=io.BytesIO(gzip.compress(bytes(2000)))),
    ):
        with pytest.raises(ValueError, match="more than 1000 bytes"):
            archives._contents(opened.read, 1000)


BOUNDED = {
    "long text with an escape": b"S'" + b"a" * 2**22 + b"\\q'\n.",
    "long text of escapes": b"S'" + b"\\x41" * 2**20 + b"\n.",
    "bytes as arguments": attack(
        b"cnumpy\nndarray\nB" + struct.pack("<I", 2**22) + bytes(2**22) + b"R"
    ),
    "4 GB announced": b"B\xff\xff\xff\xff.",
    "2**40 bytes announced": b"\x96" + struct.pack("<Q", 2**40) + b".",
    "a text of 2**63 announced": b"\x8d" + struct.pack("<Q", 2**63 - 1) + b".",
    "a memo of 2**31": b"]r\xff\xff\xff\x7f.",
    "a memo of 10**20": b"]p99999999999999999999\n.",
    "an array of 2**93": attack(
        MADE + b"(K\x01" + b"J\xff\xff\xff\x7f" * 3 + b"\x87" + BYTES + b"\x89U\x00tb"
    ),
    "lists of lists": b"]q\x00"
    + b"".join(b"](h%ch%ceq%c" % (i, i, i + 1) for i in range(60))
    + b".",
    "tuples of tuples as a key": b"]()q\x00"
    + b"".join(b"h%ch%c\x86q%c" % (i, i, i + 1) for i in range(60))
    + b"e}h\x3cNs.",
    "a deep tuple as a key": b"})" + b"\x85" * 200_000 + b"Ns.",
}


@pytest.mark.parametrize("name", BOUNDED)
def test_a_small_file_that_means_much_is_refused_in_little_memory(name):
    with traced(2**26), pytest.raises(ValueError, match=r"file .* nothing in the file was run"):
        unpickled("file", BOUNDED[name], "again")


LONG = b"T" + struct.pack("<I", 2**24) + bytes(2**24) + b"q\x01"
AGAIN = {
    "a dtype": (
        b"](cnumpy\ndtype\nq\x00(" + LONG + b"K\x00K\x01tq\x01R" + b"h\x00h\x01R" * 60 + b"e.",
        "it calls numpy dtype in an unknown way",
    ),
    "a byte order": (
        b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03"
        + LONG
        + b"NNN"
        + 2 * MINUS_1
        # The same state, over and over.
        + b"K\x00tq\x02b"
        + b"h\x02b" * 60
        + b".",
        "it builds a _Name in an unknown way",
    ),
    "a key": (b"}" + LONG + b"Ns" + b"h\x01Ns" * 100 + b"]a.", "its steps do not fit each other"),
    "an array": (
        b"]("
        + LONG
        + (MADE + b"(K\x01J\x00\x00\x00\x01K\x01\x86" + BYTES + b"\x89h\x01tb") * 60
        + b"e.",
        "it makes more bytes than it has",
    ),
}


@pytest.mark.parametrize("name", AGAIN)
def test_a_long_text_is_not_copied_over_and_over(name):
    data, reason = AGAIN[name]
    limit = 4 * 2**20 + 2**24 * 3
    with traced(limit), pytest.raises(ValueError, match=rf"cannot be read \({reason} near byte"):
        unpickled("file", data, "again")


@contextmanager
def traced(most):
    """No more memory than this is taken at once."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


def test_deeply_nested_data_is_no_trouble():
    assert len(unpickled("file", b"}U\x01k" + b"]" * 100_000 + b"a" * 99_999 + b"s.", "again")) == 1


def complaint(read, *arguments):
    """What a ValueError says, or else nothing; other errors are not caught."""
    try:
        read(*arguments)
    except ValueError as error:
        return str(error)
    return ""


def only_value_errors(read, *arguments):
    message = complaint(read, *arguments)
    assert not message or "expected" in message


PICKLES = [
    as_python_2(batches(10)["test_batch"]),
    as_python_2(batches(100)["train"]),
    *(pickle.dumps({b"data": np.arange(9), b"labels": [1, 2]}, protocol) for protocol in range(6)),
]
edits = st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 255)), min_size=1, max_size=8)


def edited(data, changes):
    found = bytearray(data)
    for at, value in changes:
        # Near the ends of the file, where all is but the pixels.
        found[at % min(len(found), 400) * (1 if at % 2 else -1)] = value
    return bytes(found)


@many
@given(st.binary(max_size=200))
def test_random_bytes_give_nothing_but_value_errors(data):
    for start in (b"", b"\x80\x02}(", b"\x80\x04"):
        only_value_errors(unpickled, "file", start + data + b".", "again")


@many
@given(st.sampled_from(PICKLES), edits)
def test_changed_pickles_give_nothing_but_value_errors(data, changes):
    only_value_errors(unpickled, "file", edited(data, changes), "again")


def tarred(contents, mode):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as archive:
        for name, data in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return file.getvalue()


TARS = [tarred(files(100, form), mode) for form in ("binary", "python") for mode in ("w:", "w:gz")]


@many
@given(st.sampled_from(TARS), edits, st.integers(0, 2**20))
def test_changed_archives_give_nothing_but_value_errors(tmp_path, data, changes, keep):
    path = tmp_path / "archive"
    for damaged in (edited(data, changes), data[: keep % len(data)], bytes(keep % 99)):
        path.write_bytes(damaged)
        only_value_errors(cifar100, path)


@pytest.mark.parametrize("part", [0.01, 0.3, 0.7, 0.999])
@pytest.mark.parametrize("mode", ["w:", "w:gz"])
def test_a_tar_file_that_was_cut_off_is_named(part, mode, tmp_path):
    # Without the blocks of zeros at the end of a tar file, which may be lost without harm.
    path = tar(tmp_path / "cifar-10-binary.tar.gz", files(10, "binary"), mode)
    data = path.read_bytes().rstrip(b"\0")
    path.write_bytes(data[: int(part * len(data))])
    with pytest.raises(
        ValueError, match=r"cifar-10-binary\.tar\.gz.*expected.*unpack cifar-10-binary"
    ):
        cifar10(tmp_path)


def test_the_checksum_of_a_zipped_archive_is_checked(tmp_path):
    path = tar(tmp_path / "a.tar.gz", files(10, "binary"))
    data = bytearray(path.read_bytes())
    data[-8:-4] = struct.pack("<I", zlib.crc32(b"other"))
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"a\.tar\.gz cannot be read \(CRC check failed"):
        cifar10(path)


@pytest.mark.parametrize("second", ["", "cifar-10-batches-bin/", "./cifar-10-batches-bin/"])
def test_a_file_that_a_tar_file_holds_twice_is_refused(second, tmp_path):
    contents = tarred(files(10, "binary"), "w:").rstrip(b"\0")
    contents += bytes(-len(contents) % 512)
    more = tarred({f"{second}data_batch_1.bin": bytes(3073)}, "w:")
    (tmp_path / "a.tar").write_bytes(contents + more)
    message = r"a\.tar cannot be read \(it holds data_batch_1\.bin twice, .*: expected"
    with pytest.raises(ValueError, match=message):
        cifar10(tmp_path / "a.tar")


def header(kind, size, name="n"):
    member = tarfile.TarInfo(name)
    member.type, member.size = kind, max(size, 0)
    made = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    if size < 0:
        made[124:136] = b"\xff" * 4 + size.to_bytes(8, "big", signed=True)
        made[148:156] = b"%06o\0 " % tarfile.calc_chksums(made)[0]
    return bytes(made)


SQUARE = b"2 " * 2**14
BOMBS = {
    "a long name": (header(b"L", 2**26) + bytes(2**26), "holds none"),
    "a name of negative size": (header(b"L", -512) + bytes(2**26), "size < 0"),
    "a PAX header": (header(b"x", 2**26) + bytes(2**26), "holds none"),
    # Each of its 2**14 keys is all the rest.
    "a PAX header of keys": ((header(b"g", 2**15) + SQUARE[:-1] + b"=") * 4, "holds none"),
    "short headers": ((header(b"g", 512) + bytes(512)) * 100 + header(b"0", 0), "holds 'n'"),
    "a sparse map": (
        header(b"x", 512)
        + b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n".ljust(512, b"\0")
        + header(b"0", 2**26)
        + b"9999999999\n"
        + (b"1" * 255 + b"\n") * 2**18,
        "bad checksum",
    ),
    "a negative size": (header(b"0", -1024) + bytes(2**20), "size < 0"),
    "many empty files": (header(b"0", 0) * 2000, "more than 1000 entries"),
    "many folders": (header(b"5", 0) * 2000, "more than 1000 entries"),
    "much else": (header(b"0", 2**31) + bytes(2**20), "more than 1073741824 bytes"),
    "a wanted file": (header(b"0", 2**31, "test_batch") + bytes(2**20), "more than 1073741824"),
    "a cut file": (header(b"0", 2**21, "test_batch") + bytes(2**20), "ends within test_batch"),
    "a sparse file": (header(b"S", 0, "test_batch") + bytes(1024), "holds none"),
}


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.parametrize("zipped", [False, True])
def test_a_tar_file_that_would_fill_the_memory_is_refused(name, zipped, tmp_path):
    data, reason = BOMBS[name]
    (tmp_path / "a").write_bytes(gzip.compress(data, 1) if zipped else data)
    with (
        traced(2**24),
        pytest.raises(ValueError, match=rf"a (cannot be read \(.*)?{reason}.*expected"),
    ):
        cifar10(tmp_path / "a")


@pytest.mark.parametrize("kind", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_tar_files_of_every_format_are_read(kind, tmp_path):
    contents = files(10, "binary")
    with tarfile.open(tmp_path / "a.tar", "w", format=kind) as archive:
        for name, data in {"long/" * 30 + "readme": b"1", **contents}.items():
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(data), 1.5
            archive.addfile(member, io.BytesIO(data))
    assert same(cifar10(tmp_path / "a.tar"), cifar10(lay(tmp_path, contents)))


def test_the_limit_is_for_all_files_of_a_set(tmp_path, monkeypatch):
    contents = files(10, "binary")
    largest = max(map(len, contents.values()))
    monkeypatch.setattr(archives, "_MOST_BYTES", sum(map(len, contents.values())) - 1)
    assert largest < archives._MOST_BYTES
    for path in (lay(tmp_path / "a", contents), tar(tmp_path / "b.tar.gz", contents)):
        with pytest.raises(ValueError, match=r"holds more than \d+ bytes\): expected"):
            cifar10(path)
    numbers = {key: idx(array) for key, array in digits().items()}
    monkeypatch.setattr(archives, "_MOST_BYTES", sum(map(len, numbers.values())))
    mnist(lay(tmp_path / "c", numbers))
    monkeypatch.setattr(archives, "_MOST_BYTES", sum(map(len, numbers.values())) - 1)
    with pytest.raises(ValueError, match=rf"{LABELS} cannot .* holds more than \d+ bytes"):
        mnist(tmp_path / "c")


def test_links_in_a_tar_file_are_not_followed(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name in files(10, "binary"):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, name
            archive.addfile(member)
    with pytest.raises(ValueError, match=r"a\.tar holds none: expected data_batch_1\.bin"):
        cifar10(tmp_path / "a.tar")


def test_what_is_missing_is_named(small, tmp_path):
    read, contents, tarball, _ = small
    last = list(contents)[-1]
    fewer = {name: data for name, data in contents.items() if name != last}
    name = last.split("/")[1]
    for path in (lay(tmp_path / "a", fewer), tar(tmp_path / tarball, fewer), tmp_path):
        with pytest.raises(ValueError, match=rf"{name} is missing: expected all of"):
            read(path)
    with pytest.raises(ValueError, match="holds 'readme': expected"):
        read(lay_tar(tmp_path / "other.tar"))
    with pytest.raises(ValueError, match="is not a directory: expected"):
        read(tmp_path / "none")
    (tmp_path / "text").write_text("text")
    with pytest.raises(ValueError, match="text cannot be read"):
        read(tmp_path / "text")


def lay_tar(path):
    path.write_bytes(tarred({"readme": b""}, "w:"))
    return path


@pytest.mark.parametrize("form", ["binary", "python"])
@pytest.mark.parametrize("classes", SETS)
def test_another_cifar_in_its_place_is_refused(form, classes, tmp_path):
    read, names, _ = SETS[classes]
    other = 110 - classes
    with pytest.raises(
        ValueError, match=rf"but 'cifar-{other}.*expected .*unpack cifar-{classes}-"
    ):
        read(lay(tmp_path / "a", files(other, form)))
    with pytest.raises(ValueError, match=rf"holds .*'cifar-{other}.*expected"):
        read(tar(tmp_path / "b.tar.gz", files(other, form)))
    data = next(iter(files(other, form).values()))
    end = ".bin" if form == "binary" else ""
    with pytest.raises(ValueError, match=rf"{names[0]}{end} has .* another"):
        read(lay(tmp_path / "c", {f"{name}{end}": data for name in names}))


BATCH = batches(10)["test_batch"]
ROWS = len(BATCH[b"labels"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({b"labels": [10] * ROWS}, "the label 10: expected 0 to 9 in CIFAR-10"),
        ({b"labels": [2**30] * ROWS}, "the label 1073741824: expected 0 to 9"),
        ({b"labels": [1] * (ROWS + 1)}, f"has {ROWS + 1} labels and data of shape"),
        ({b"labels": [b"1"] * ROWS}, "has labels that are no integers"),
        ({b"labels": 1}, "has no list of labels"),
        ({b"labels": [], b"data": np.zeros((0, 3072), np.uint8)}, "has 0 labels"),
        ({b"data": [1]}, "no array of bytes as 'data'"),
        ({b"data": None}, "no array of bytes as 'data'"),  # an array that is left empty
        ({b"data": BATCH[b"data"][:, 1:]}, "and data of shape"),
    ],
)
def test_a_batch_with_wrong_contents_is_refused(change, message, tmp_path):
    contents = files(10, "python")
    contents["cifar-10-batches-py/test_batch"] = as_python_2({**BATCH, **change})
    with pytest.raises(ValueError, match=rf"test_batch .*{message}.*; .*cifar-10-python\.tar\.gz"):
        cifar10(lay(tmp_path, contents))


def test_very_many_labels_are_refused_by_their_number():
    labels = b"U\x06labels](" + b"K\x01" * 2**20 + b"e"
    data = as_python_2({b"data": np.zeros((1, 3072), np.uint8)}).replace(b"u.", labels + b"u.")
    with pytest.raises(ValueError, match="test_batch has 1048576 labels and data"):
        standard_images._from_pickle(archives.File("test_batch", data), standard_images.CIFAR10)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (bytes([20, 0]), "the label 20: expected 0 to 19"),
        (bytes([19, 100]), "the label 100: expected 0 to 99"),
        (b"", "has 3072 bytes: expected a multiple of 3074"),
    ],
)
def test_records_with_wrong_labels_are_refused(record, message, tmp_path):
    contents = files(100, "binary")
    contents["cifar-100-binary/test.bin"] = record + bytes(3072)
    with pytest.raises(ValueError, match=rf"test\.bin .*{message}"):
        cifar100(lay(tmp_path, contents))


def idx(array):
    sizes = struct.pack(f">{array.ndim}I", *array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes()


def digits(seed=0):
    rng, found = np.random.default_rng(seed), {}
    for part, count in (("train", 5), ("t10k", 3)):
        found[f"{part}-images-idx3-ubyte"] = rng.integers(0, 256, (count, 28, 28))
        found[f"{part}-labels-idx1-ubyte"] = rng.integers(0, 10, count)
    return found


@pytest.mark.parametrize(("read", "name"), [(mnist, "MNIST"), (fashion_mnist, "FashionMNIST")])
@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("dot", [False, True])
def test_idx_files_give_every_image_in_order(read, name, zipped, dot, tmp_path):
    arrays = digits()
    contents = {
        key.replace("-idx", ".idx" if dot else "-idx") + ".gz" * zipped: gzip.compress(data)
        if zipped
        else data
        for key, data in ((key, idx(array)) for key, array in arrays.items())
    }
    found = read(lay(tmp_path, contents))
    assert same(read(lay(tmp_path / "b" / name / "raw", contents).parents[1]), found)
    train, train_y, test, test_y = arrays.values()
    assert found.train_x.shape == (5, 1, 28, 28)
    assert (found.train_y.tolist(), found.test_y.tolist()) == (train_y.tolist(), test_y.tolist())
    for x, pixels in ((found.train_x, train), (found.test_x, test)):
        wanted = torch.from_numpy((pixels - train.mean()) / train.std()).float()
        torch.testing.assert_close(x[:, 0], wanted)


IMAGES, LABELS = "train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        (IMAGES, b"", "begins with nothing and has 0 bytes: expected 00 00 08 03"),
        (IMAGES, bytes([0, 0, 8, 3, 0, 0]), "and has 6 bytes: expected 00 00 08 03"),
        (IMAGES, idx(np.zeros(9)), "begins with 00 00 08 01"),
        (IMAGES, bytes([0, 0, 9, 3]) + bytes(12), "begins with 00 00 09 03"),
        (IMAGES, idx(np.zeros((5, 28, 28)))[:-1], "has 3919 bytes after its header: expected 3920"),
        (IMAGES, idx(np.zeros((5, 28, 28))) + b"1", "has 3921 bytes after its header"),
        (IMAGES, bytes([0, 0, 8, 3]) + b"\xff" * 12, "has 0 bytes after its header: expected 7922"),
        (IMAGES, idx(np.zeros((0, 28, 28))), r"the shape \[0, 28, 28\]: expected at least one"),
        (IMAGES, idx(np.zeros((5, 32, 32))), r"the shape \[5, 32, 32\]: .* 28 x 28"),
        (IMAGES, idx(np.zeros((6, 28, 28))), " 6 images: expected equally many"),
        (LABELS, idx(np.array([1, 2, 10])), "the label 10: expected 0 to 9"),
        (LABELS, idx(np.zeros((3, 1))), "begins with 00 00 08 02"),
    ],
)
def test_wrong_idx_files_are_refused_by_name(name, data, message, tmp_path):
    contents = {key: idx(array) for key, array in digits().items()} | {name: data}
    with pytest.raises(ValueError, match=rf"{name}.*{message}.*get the four files"):
        mnist(lay(tmp_path, contents))


def test_missing_and_damaged_idx_files_are_named(tmp_path):
    with pytest.raises(ValueError, match="is not a directory: expected all of"):
        mnist(tmp_path / "none")
    with pytest.raises(ValueError, match=f"has no {IMAGES}: expected all of"):
        fashion_mnist(tmp_path)
    contents = {key + ".gz": gzip.compress(idx(array)) for key, array in digits().items()}
    whole = contents[LABELS + ".gz"]
    lay(tmp_path, contents)
    for damaged in (whole[:-9], whole[:-4], b"", b"text", whole[:-8] + bytes(8), whole + b"more"):
        (tmp_path / (LABELS + ".gz")).write_bytes(damaged)
        with pytest.raises(ValueError, match=rf"{LABELS}\.gz .*get the four files .*again"):
            mnist(tmp_path)
    (tmp_path / (LABELS + ".gz")).unlink()
    with pytest.raises(ValueError, match=f"has no {LABELS} but "):
        mnist(tmp_path)


@many
@given(edits, st.booleans(), st.integers(0, 2**12))
def test_changed_idx_files_give_nothing_but_value_errors(tmp_path, changes, zipped, keep):
    contents = {key: idx(array) for key, array in digits().items()}
    data = gzip.compress(contents.pop(LABELS)) if zipped else contents.pop(LABELS)
    for damaged in (edited(data, changes), data[: keep % len(data)]):
        lay(tmp_path, contents)
        (tmp_path / LABELS).unlink(missing_ok=True)
        (tmp_path / (LABELS + ".gz" * zipped)).write_bytes(damaged)
        only_value_errors(mnist, tmp_path)


def test_names_of_arguments_are_checked(tmp_path):
    for read in (cifar10, cifar100, mnist, fashion_mnist):
        with pytest.raises(ValueError, match="did you mean 'path'"):
            read(paht=tmp_path)


@pytest.mark.parametrize(("classes", "positives"), [(2, 1), (3, 1), (10, 5), (100, 50)])
def test_half_names_the_first_half_of_the_classes(classes, positives):
    labels = torch.arange(classes).flip(0) + 7
    assert torch.equal(binarise(labels, "half"), labels < 7 + positives)


def test_half_of_real_images_is_half():
    assert binarise(fashion_tiny().train_y, positive="half").float().mean() == 0.5


@pytest.mark.parametrize(
    ("labels", "positive", "message"),
    [
        ([0, 1], "haf", "positive='haf': expected a collection of classes or 'half'; did you mean"),
        ([0, 1], "Half", "did you mean 'half'"),
        ([0, 1], "01", "name the classes by their numbers"),
        ([1, 1], "half", "positive='half': expected some but not all of the classes 1"),
    ],
)
def test_other_words_than_half_are_refused(labels, positive, message):
    with pytest.raises(ValueError, match=message):
        binarise(torch.tensor(labels), positive)

"""The standard library of Python, with a probe for each module."""

# ruff: noqa: E501 - a row of a table stays on its line

from __future__ import annotations

from behaviours.behaviour import Behaviour, gives, sharing

MISSING = {"monty": "RUNTIME_ERROR"}


def _module(
    name: str, value: object, code: str, refused: dict[str, str] | None = None, **more: object
) -> Behaviour:
    """Return the row of a module; *code* follows its import."""
    text = f"import {name}\n{code}"
    return Behaviour(
        name=f"the module {name}",
        check=gives(value),
        py=text,
        refused=refused or {},
        **more,  # type: ignore[arg-type]
    )


PYTHON_LIBRARY = sharing(
    _module("math", [3.0, 120, 6, True], "[math.sqrt(9), math.factorial(5), math.gcd(12, 18), math.isclose(0.1 + 0.2, 0.3)]"),
    _module("json", ['{"a": 1}', [1]], "[json.dumps({'a': 1}), json.loads('[1]')]"),
    _module("re", ["b", "x-y"], "[re.search('[b-z]', 'ab')[0], re.sub(r'\\s', '-', 'x y')]"),
    _module("datetime", ["2024-02-29T12:00:00", 86400.0], "[datetime.datetime(2024, 2, 29, 12).isoformat(), datetime.timedelta(days=1).total_seconds()]"),
    _module("collections", [[["a", 2]], 1, [1, 2]], "d = collections.defaultdict(list)\nd['k'].append(1)\n[[list(p) for p in collections.Counter('aab').most_common(1)], len(d), list(collections.deque([1, 2]))]"),
    _module("itertools", [[1, 2, 3], [["a", 1], ["a", 2]]], "[list(itertools.chain([1], [2, 3])), [list(p) for p in itertools.product('a', [1, 2])]]"),
    _module("functools", [6, 3], "[functools.reduce(lambda a, b: a * b, [1, 2, 3]), functools.partial(max, 3)(1)]"),
    _module("random", [True, True], "[0 <= random.random() < 1, random.choice([1, 2]) in (1, 2)]"),
    _module("decimal", "0.3", "str(decimal.Decimal('0.1') + decimal.Decimal('0.2'))"),
    _module("hashlib", "900150983cd24fb0d6963f7d28e17f72", "hashlib.md5(b'abc').hexdigest()"),
    _module("base64", ["aGk=", "hi"], "[base64.b64encode(b'hi').decode(), base64.b64decode('aGk=').decode()]"),
    _module("bisect", [1, [1, 2, 3]], "xs = [1, 3]\nat = bisect.bisect(xs, 2)\nbisect.insort(xs, 2)\n[at, xs]"),
    _module("copy", [[1], [1, 2]], "a = [[1]]\nb = copy.deepcopy(a)\nb[0].append(2)\n[a[0], b[0]]"),
    _module("typing", True, "x: typing.Optional[int] = None\nx is None"),
    _module("unicodedata", "LATIN SMALL LETTER A", "unicodedata.name('a')"),
    _module("tomllib", {"a": [1]}, "tomllib.loads('a = [1]')"),
    _module("csv", [["a", "b,c"]], "list(csv.reader(['a,\"b,c\"']))"),
    _module("pathlib", ["/a/b", ".txt"], "[str(pathlib.Path('/a') / 'b'), pathlib.Path('x.txt').suffix]"),
    _module("string", ["abc", "hi x"], "[string.ascii_lowercase[:3], string.Template('hi $n').substitute(n='x')]", MISSING),
    _module("enum", [3, True], "F = enum.IntFlag('F', ['A', 'B'])\n[int(F.A | F.B), F.A in (F.A | F.B)]", MISSING),
    _module("heapq", [1, [5, 4]], "h = [3, 1, 2]\nheapq.heapify(h)\n[heapq.heappop(h), heapq.nlargest(2, [1, 5, 4])]", MISSING),
    _module("statistics", [2, 2.5], "[statistics.mean([1, 2, 3]), statistics.median([1, 2, 3, 4])]", MISSING),
    _module("operator", [3, "b"], "[operator.add(1, 2), operator.itemgetter('a')({'a': 'b'})]", MISSING),
    _module("contextlib", ["in", "out"], "log = []\n@contextlib.contextmanager\ndef c():\n    log.append('in')\n    yield\n    log.append('out')\nwith c():\n    pass\nlog", {"monty": "UNSUPPORTED_FEATURE"}),
    _module("io", "text", "f = io.StringIO()\nf.write('text')\nf.getvalue()", MISSING),
    _module("textwrap", ["a b", "c"], "textwrap.wrap('a b c', 3)", MISSING),
    _module("uuid", 36, "len(str(uuid.uuid4()))", MISSING),
    _module("fractions", "1/2", "str(fractions.Fraction(1, 3) + fractions.Fraction(1, 6))", MISSING),
    _module("difflib", True, "difflib.SequenceMatcher(None, 'abcd', 'abce').ratio() > 0.7", MISSING),
    _module("html", "&lt;a&gt;", "html.escape('<a>')", MISSING),
    _module("secrets", 8, "len(secrets.token_hex(4))", MISSING),
    _module("struct", "0102", "struct.pack('>H', 258).hex()", MISSING),
    _module("zlib", "text", "zlib.decompress(zlib.compress(b'text')).decode()", MISSING),
    _module("sqlite3", [[3]], "db = sqlite3.connect(':memory:')\n[list(r) for r in db.execute('select 1 + 2')]", MISSING),
    _module("ast", [1, 2], "ast.literal_eval('[1, 2]')", MISSING),
    _module("inspect", ["a", "b"], "list(inspect.signature(lambda a, b: 1).parameters)", MISSING),
    _module("zoneinfo", "2024-07-01T14:00:00+02:00", "import datetime\ndatetime.datetime(2024, 7, 1, 12, tzinfo=datetime.timezone.utc).astimezone(zoneinfo.ZoneInfo('Europe/Berlin')).isoformat()", MISSING),
    _module("calendar", [29, True], "[calendar.monthrange(2024, 2)[1], calendar.isleap(2024)]", MISSING),
    _module("urllib.parse", ["a%20b", "h", {"q": ["1"]}], "[urllib.parse.quote('a b'), urllib.parse.urlsplit('https://h/p').netloc, urllib.parse.parse_qs('q=1')]", MISSING),
    _module("xml.etree.ElementTree", "t", "xml.etree.ElementTree.fromstring('<a><b>t</b></a>').find('b').text", MISSING),
    _module("concurrent.futures", [1, 4], "with concurrent.futures.ThreadPoolExecutor(2) as pool:\n    got = list(pool.map(lambda n: n * n, [1, 2]))\ngot", MISSING),
)  # fmt: skip

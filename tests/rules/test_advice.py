"""What `make check` advises is counted rightly; the length of the package itself fails no test."""

from __future__ import annotations

from .advice import advice


def test_long_files_and_functions_are_named(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "short.py").write_text("def f():\n" + '    """Said at length.\n' + "\n" * 40 + '    """\n    return 1\n')
    (package / "long.py").write_text("x = 1\n" * 460 + "def f():\n" + "    x = 1\n" * 41)
    assert advice(package) == [
        "package/long.py: 502 lines (at most 500)",
        "package/long.py:461: f has 42 lines (at most 40)",
    ]

"""`posterity new method foo`: a method's file and its test, complete and passing, to be changed (`templates/`)."""

import keyword
from pathlib import Path

TEMPLATES = Path(__file__).parent / "templates"


def write_method(name: str, folder: Path) -> tuple[Path, Path, str]:
    """Write `name.py` and `test_name.py` into `folder`; returns both and the method's dotted path."""
    if not name.isidentifier() or keyword.iskeyword(name) or name != name.lower():
        raise ValueError(f"a method's name is a Python name in lower case, such as 'fedfoo'; {name!r} was given")
    made, test = folder / f"{name}.py", folder / f"test_{name}.py"
    for path in (made, test):
        if path.exists():
            raise ValueError(f"{path} exists; nothing was written")
    title = "".join(word.capitalize() for word in name.split("_"))
    folder.mkdir(parents=True, exist_ok=True)
    for path, template in ((made, "method.txt"), (test, "test_method.txt")):
        text = (TEMPLATES / template).read_text(encoding="utf-8")
        path.write_text(text.replace("{title}", title).replace("{module}", name), encoding="utf-8")
    return made, test, f"{name}:{title}"

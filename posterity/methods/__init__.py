"""One file per method; `methods/foo.py` is `--method foo`. Wrappers (`wrappers/ft.py` is `+ft`) are suffixes."""

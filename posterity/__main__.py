"""`python -m posterity` is `posterity`."""

from posterity.cli import main

main()

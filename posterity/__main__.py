"""`python -m posterity` is `posterity`."""

from posterity.settings.plugins import leave_folder_out

leave_folder_out()  # before anything is imported that a file of the current folder could stand in for

from posterity.cli import main  # noqa: E402

main()

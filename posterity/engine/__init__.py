"""Engines that run a method: one client at a time (`loop`), or hundreds in one tensor program (`stacked`)."""

"""The benchmark house: `make bench` measures, writes `docs/performance.md`, and fails when equal results differ.

It lives outside the package and imports it like a user would; nothing of it is in the wheel.
"""

"""The names of torch and of the standard library that this package uses beyond their public interfaces.

`names` lists every replaced name and every private name in use; `registry` is the only module that replaces names, and
checks that all exist; `versions` lists the supported versions of torch. Every further name must be declared in `names`.
"""

"""What this package needs of torch and of the standard library beyond their public interfaces.

`names` lists every name that is replaced, and every private one that is relied on; `registry` is the only way to replace one, and finds out
whether all are there; `versions` says which versions of torch are supported. Whoever needs another name declares it here.
"""

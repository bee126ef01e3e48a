"""The user's program: how it is executed (`execution`), which code is its own (`lines`), which ranges it names (`ranges`), and what to
do about an error that ends it (`hints`). The same in a simulated rank and in one of a real cluster.
"""

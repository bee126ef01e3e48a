"""The user's program: its execution (`execution`), which code is the program's own (`lines`), its named ranges
(`ranges`), and hints for errors that end it (`hints`). Used in simulated ranks and in ranks of a real cluster."""

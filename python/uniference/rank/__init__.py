"""What runs in the processes of simulated ranks.

In the order of a run: `zygote` is the process that imports torch and forks; `process` makes a rank of such a copy and ends it. It puts in
place what the program meets: time (`clock`, `charging`, `imports`), meeting places (`store`, `spawning`, `launching`), the process groups
(`uniference.backends`), and what is refused (`refusals`, `meta`, `children`). `debugging` gives a rank the terminal.
"""

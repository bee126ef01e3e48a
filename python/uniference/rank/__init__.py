"""The processes of simulated ranks.

In the order of a run: `zygote` is the process that imports torch and forks; `process` turns a fork into a rank and ends
it. `process` installs the simulated environment: time (`clock`, `charging`, `imports`), rendezvous (`store`,
`spawning`, `launching`), the process groups (`uniference.backends`), and refusals (`refusals`, `meta`, `children`).
`debugging` gives a rank the terminal.
"""

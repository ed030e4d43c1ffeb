"""Child processes and signals: start processes, notice that they end, keep what they print.

`stacks` reads what one of them is doing; who asks all of them is `synk.run.launch.watchdog`.
"""

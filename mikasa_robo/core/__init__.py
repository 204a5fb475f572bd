"""What every memory task shares: phases, random episodes, hidden objects, touches, rewards and the environment itself.

`hooks` declares what a task defines, `env` calls it. Only `env`, `tabletop`, `seeds`, `visibility`, `touch_sensor` and
`arm_hold` use the simulator; the other modules are pure functions of tensors.
"""

"""What the package shows under its short names: ``npu_device.train`` is this one, the module of that name another."""

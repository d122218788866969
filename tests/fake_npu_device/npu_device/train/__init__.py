"""Where the training helpers are made. Nothing can be imported from here; they are attributes of ``npu_device.train``."""

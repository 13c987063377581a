"""The channel and the buffer between samplers and learners: admission, order, full policies, payloads.

Import the parts from their modules: `channel.buffer` (the Ray actor of a run), `channel.channel` (the generic
queue), `channel.payload` (arrays of a group); `admission`, `policies`, `metering` and `state` are pure.
"""

"""Other tests start JVMs beside these: how long one example takes says nothing."""

from hypothesis import settings

settings.register_profile("beside-jvms", deadline=None)
settings.load_profile("beside-jvms")

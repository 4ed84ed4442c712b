"""An OpenAI server for engines that are libraries: `decoder` is what such a library has to offer, the rest is the same for all."""

"""Pretrained encoders, vision transformers and decoders: their files, weights and tokenizers. For train/tasks alone."""

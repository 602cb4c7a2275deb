"""Pretrained encoders and decoders: their files, weights and tokenizers. For
train/tasks only."""

"""The program that pulls one model. Nowhere else in the gateway is huggingface_hub imported."""

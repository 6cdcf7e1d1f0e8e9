"""The models on the disks, and pulls of more models from the Hugging Face hub."""

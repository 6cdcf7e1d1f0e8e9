"""The models on the disks, and pulls, which get more of them from the Hugging Face hub."""

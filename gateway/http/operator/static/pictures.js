// Pictures as data: URLs, small enough to keep and to send.

const LONGEST_SIDE = 1536;
const SMALL_BYTES = 500_000;
const KINDS = ["image/png", "image/jpeg", "image/webp"];

// Throws if the browser can't read it.
export async function pictureUrl(file) {
  const picture = await createImageBitmap(file);
  const shrink = Math.min(1, LONGEST_SIDE / Math.max(picture.width, picture.height));
  if (shrink === 1 && file.size <= SMALL_BYTES && KINDS.includes(file.type)) return asUrl(file);
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(picture.width * shrink));
  canvas.height = Math.max(1, Math.round(picture.height * shrink));
  canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL("image/jpeg", 0.9);
}

function asUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}

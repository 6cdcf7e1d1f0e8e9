// A box that follows its content's end until its reader looks at something above.

import { useEffect, useRef, useState } from "./html.js";

const NEAR_PX = 40;

// { box, content, away, toEnd }: refs of the box and of what grows in it, whether its reader is away
// from the end, and the way back.
export function useFollowing() {
  const box = useRef(null);
  const content = useRef(null);
  const following = useRef(true);
  const [away, setAway] = useState(false);

  const follow = () => {
    if (following.current) box.current.scrollTop = box.current.scrollHeight;
  };
  const toEnd = () => {
    following.current = true;
    setAway(false);
    follow();
  };
  useEffect(() => {
    const shown = box.current;
    let lastTop = shown.scrollTop;
    // Content that grows moves nothing up: only its reader does.
    const onScroll = () => {
      const { scrollTop, scrollHeight, clientHeight } = shown;
      if (scrollHeight - scrollTop - clientHeight < NEAR_PX) following.current = true;
      else if (scrollTop < lastTop) following.current = false;
      lastTop = scrollTop;
      setAway(!following.current);
    };
    const sizes = new ResizeObserver(follow);
    sizes.observe(shown);
    sizes.observe(content.current);
    shown.addEventListener("scroll", onScroll, { passive: true });
    return () => {
      sizes.disconnect();
      shown.removeEventListener("scroll", onScroll);
    };
  }, []);
  return { box, content, away, toEnd };
}
